"""Client and load generator for a Qwen3-TTS server."""

__version__ = "0.1.0"
