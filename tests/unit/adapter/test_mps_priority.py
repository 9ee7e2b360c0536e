"""Under MPS the codec's process goes before the talker's: CUDA reads a variable at the first call of the process."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

REPOSITORY = Path(__file__).parents[3] / "model_repository"
PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"


class FirstCallError(Exception):
    pass


@pytest.fixture
def start(adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Initialises a model up to the first function that `initialize` calls."""
    adapter("requests", MagicMock())

    def start(model: str, first: str) -> None:
        def stop(*arguments: object) -> None:
            raise FirstCallError

        spec = importlib.util.spec_from_file_location(f"{model}_model", REPOSITORY / model / "1" / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        owner, _, name = first.rpartition(".")
        monkeypatch.setattr(getattr(module, owner) if owner else module, name, stop)
        with pytest.raises(FirstCallError):
            module.TritonPythonModel().initialize({"model_name": model})

    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    return start


MODELS = [("code2wav", "instance.log_through_triton", "0"), ("qwen3_tts", "_lift_file_limit", "1")]


@pytest.mark.parametrize(("model", "first", "priority"), MODELS)
def test_priority_is_set_before_anything_else(
    model: str, first: str, priority: str, start: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Set first, so that the end of the test removes what the model sets.
    monkeypatch.setenv(PRIORITY, "")
    monkeypatch.delenv(PRIORITY)
    start(model, first)
    assert os.environ[PRIORITY] == priority


@pytest.mark.parametrize(("model", "first", "priority"), MODELS)
def test_priority_of_the_environment_is_kept(
    model: str, first: str, priority: str, start: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = str(1 - int(priority))
    monkeypatch.setenv(PRIORITY, other)
    start(model, first)
    assert os.environ[PRIORITY] == other
