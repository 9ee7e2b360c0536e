"""A plan of the compiled plugin that QWEN3_TTS_TENSORRT_PLUGIN names, compared with PyTorch."""

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from export.forms.tensorrt_form import PlanCalls, tensorrt_form
from export.tensorrt.api import PLUGIN_LIBRARY
from export.tensorrt.process import TENSORRT_PYTHON, PlanError, TensorRtSettings
from export.verify import failures
from qwen3_tts_engine.codec.contract import NO_SAMPLE, NUM_ROWS, PLACES_SIZE, ZERO_ROW
from tests.fakes.codec_layers import small_step

LIBRARY, PYTHON = os.environ.get(PLUGIN_LIBRARY), os.environ.get(TENSORRT_PYTHON)
pytestmark = [
    pytest.mark.skipif(not LIBRARY, reason=f"{PLUGIN_LIBRARY} names no library"),
    pytest.mark.skipif(not PYTHON and not importlib.util.find_spec("tensorrt"), reason="no TensorRT"),
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TensorRtSettings:
    return TensorRtSettings(Path(PYTHON or sys.executable), 0, tmp_path_factory.mktemp("timings"), Path(LIBRARY or ""))


@pytest.fixture(scope="module")
def plan(settings: TensorRtSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "model.plan"
    engine = tensorrt_form(settings).build(small_step(), path)
    assert engine is not None
    assert engine.plugin
    return path


def test_every_shape_agrees_with_pytorch(settings: TensorRtSettings, plan: Path) -> None:
    form = tensorrt_form(settings)
    verification = form.verification(small_step(), form.load(plan))
    assert not failures(list(verification.run()), form.limit)


@pytest.fixture(scope="module")
def calls(settings: TensorRtSettings, plan: Path) -> PlanCalls:
    found = tensorrt_form(settings).load(plan)
    assert isinstance(found, PlanCalls)
    return found


def test_unrecorded_shapes_are_rejected(calls: PlanCalls) -> None:
    with pytest.raises(PlanError, match="could not be launched with codes"):
        calls(np.zeros((2, 3, 16), np.int32), np.zeros((2, PLACES_SIZE), np.int32))
    with pytest.raises(PlanError, match="the plan does not support codes"):
        calls(np.zeros((1, 17, 16), np.int32), np.zeros((1, PLACES_SIZE), np.int32))


def test_a_key_opens_its_rows_alone(calls: PlanCalls) -> None:
    """What the kernel decides for every call is in tests/unit/code2wav_step/test_places.py, which runs here too."""
    codes = np.random.default_rng(0).integers(0, 2048, (1, 4, 16), np.int32)

    def denied(*place: int) -> bool:
        return bool(calls(codes, np.array([place], np.int32))[0, :2].tolist() == [NO_SAMPLE] * 2)

    assert not denied(ZERO_ROW, 1, 0, 5)
    assert denied(ZERO_ROW, 1, 0, 6)
    assert denied(1, 2, 4, 6)
    assert denied(1, NUM_ROWS - 1, 4, 0)
    assert not denied(ZERO_ROW, NUM_ROWS - 1, 0, 0)
    assert denied(ZERO_ROW, NUM_ROWS, 0, 5)
    assert not denied(1, 1, 4, 5)


def test_plan_does_not_load_without_the_plugin(
    settings: TensorRtSettings, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLUGIN_LIBRARY)
    with pytest.raises(PlanError):
        tensorrt_form(TensorRtSettings(settings.python, 0, settings.cache)).load(plan)
