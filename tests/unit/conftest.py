"""Fixtures that several unit tests share."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Imports a module of the adapter with `utilities` in place of triton_python_backend_utils."""

    def unload() -> None:
        for name in [name for name in sys.modules if name.startswith("triton_adapter")]:
            del sys.modules[name]

    def load(name: str, utilities: object = None) -> Any:
        monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utilities or SimpleNamespace())
        return importlib.import_module(f"triton_adapter.{name}")

    unload()
    yield load
    unload()
