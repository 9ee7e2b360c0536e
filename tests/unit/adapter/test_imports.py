"""What the process that Triton calls imports: the engine starts only then, and PyTorch takes seconds and 200 MB."""

import subprocess
import sys
from pathlib import Path

MODEL = Path(__file__).parents[3] / "model_repository" / "qwen3_tts" / "1"
HEAVY = ("torch", "huggingface_hub", "tokenizers", "onnxruntime")
PROGRAM = f"""
import sys, types
sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
import model
print(*(name for name in {HEAVY} if name in sys.modules))
"""


def test_the_model_that_triton_calls_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(command, cwd=MODEL, env={"PYTHONPATH": str(MODEL)}, capture_output=True, check=True).stdout
    assert not output.split()
