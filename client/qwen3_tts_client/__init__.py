"""Client and load generator for a Qwen3-TTS server."""

__version__ = "1.0.0rc1"
