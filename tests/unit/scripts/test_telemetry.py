"""Nothing that imports ONNX Runtime lets it report to Microsoft."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATHS = (".", "client", "model_repository/qwen3_tts/1", "model_repository/code2wav/1")
# Its telemetry keeps a database in the cache folder from the import on.
SCRIPT = """
import os, sys
import {module}
assert "onnxruntime" in sys.modules
files = [os.path.realpath(f"/proc/self/fd/{{number}}") for number in os.listdir("/proc/self/fd")]
print([file for file in files if "onnxruntime.db" in file])
"""


@pytest.mark.parametrize(
    "module", ["code2wav_step.onnx_runner", "qwen3_tts_engine.talker.onnx_graph", "export.forms.graph"]
)
def test_onnx_runtime_keeps_no_telemetry(module: str, tmp_path: Path) -> None:
    # In CI it reports nothing of itself.
    silencing = ("ORT_DISABLE_TELEMETRY", "CI", "PYTEST_CURRENT_TEST")
    environment = {name: value for name, value in os.environ.items() if name not in silencing}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(str(ROOT / path) for path in PATHS)}
    command = [sys.executable, "-c", SCRIPT.format(module=module)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert not list(tmp_path.rglob("onnxruntime*"))
