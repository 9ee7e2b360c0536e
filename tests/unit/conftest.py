"""Fixtures of several unit tests."""

import sys
from pathlib import Path

import pytest

from export.tensorrt.process import TensorRtSettings

PLAN_PYTHON = Path(__file__).parents[1] / "fakes" / "plan_python.py"


@pytest.fixture
def fake_tensorrt(tmp_path: Path) -> TensorRtSettings:
    """A stand-in for the Python that has TensorRT; its plans are ONNX files, run on the CPU."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{PLAN_PYTHON}" "$@"\n')
    python.chmod(0o755)
    return TensorRtSettings(python, level=1, cache=tmp_path / "cache")
