"""Imports modules that need the CUDA bindings with stand-ins, since test machines lack a driver."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

import pytest

TALKER = "qwen3_tts_engine.talker"
KERNELS = f"{TALKER}.kernels"


@contextmanager
def imported(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[Any]:
    """The last module of `names`; all are imported with stand-ins for the bindings, and forgotten afterwards."""
    bindings = MagicMock()
    for name, module in (("cuda", MagicMock(bindings=bindings)), ("cuda.bindings", bindings)):
        monkeypatch.setitem(sys.modules, name, module)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(names[-1])
    for name in names:
        del sys.modules[name]
