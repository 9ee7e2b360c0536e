"""The engine's process with faulty_service.py."""

from faulty_service import FaultyService

from qwen3_tts_engine.process import child

if __name__ == "__main__":
    child.main(FaultyService)
