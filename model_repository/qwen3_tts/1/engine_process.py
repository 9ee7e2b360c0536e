"""Entry point of the engine's own process, which model.py starts (qwen3_tts_engine/process/parent.py)."""

from qwen3_tts_engine.process import child
from qwen3_tts_engine.service import Service

if __name__ == "__main__":
    child.main(Service)
