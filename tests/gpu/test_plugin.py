"""A plan of the compiled plugin that QWEN3_TTS_TENSORRT_PLUGIN names, compared with PyTorch."""

import importlib.util
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from export.forms.tensorrt_form import PlanStep, tensorrt_form
from export.profiles import Shapes
from export.tensorrt.api import PLUGIN_LIBRARY
from export.tensorrt.process import TENSORRT_PYTHON, PlanError, TensorRtSettings
from export.verify import Verification, failures
from qwen3_tts_engine.codec.contract import input_shapes
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
    outcomes = list(Verification(small_step(), form.load(plan), form.batches, form.utterance).run())
    # The error limit is relative to full scale, which random weights do not have.
    assert not failures(outcomes, replace(form.limit, max_error=math.inf))


def test_unrecorded_shapes_are_rejected(settings: TensorRtSettings, plan: Path) -> None:
    step = tensorrt_form(settings).load(plan)
    assert isinstance(step, PlanStep)
    three: Shapes = input_shapes(2, 3, small_step().state_size)
    with pytest.raises(PlanError, match="the plan does not support"):
        step.plan.run(three)


def test_plan_does_not_load_without_the_plugin(
    settings: TensorRtSettings, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLUGIN_LIBRARY)
    with pytest.raises(PlanError):
        tensorrt_form(TensorRtSettings(settings.python, 0, settings.cache)).load(plan)
