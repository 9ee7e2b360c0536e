"""Where log records go."""

import logging

LOGGERS = ("qwen3_tts", "qwen3_tts_engine")


def log_through(handler: logging.Handler) -> None:
    """Send the records of all modules to `handler` alone."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
