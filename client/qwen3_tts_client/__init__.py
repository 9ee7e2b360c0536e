"""Speaks through a Qwen3-TTS server, and measures it."""

__version__ = "0.1.0"
