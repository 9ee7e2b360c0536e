"""TensorRT plans of the encoders: export and checks. tests/gpu/test_plugin.py has the codec's.

QWEN3_TTS_TENSORRT_PYTHON selects the Python that has TensorRT.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch
from rich.progress import Progress

from export.encoders import CODEC_ENCODER, MOST_FRAMES, SPEAKER_ENCODER, EncoderExport, export_encoder
from export.encoders import is_current as is_encoder_current
from export.forms.tensorrt_plan import tensorrt
from export.tensorrt.process import TENSORRT_PYTHON, PlanError, PlanProcess, TensorRtSettings
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.manifest import EncoderManifest
from qwen3_tts_engine.checkpoint.tensorrt_plan import check_plan
from qwen3_tts_engine.voices import encoders
from tests.conftest import CheckpointOf

BACKENDS = Path(__file__).parents[2] / "scripts" / "embedded" / "backends"
PYTHON = os.environ.get(TENSORRT_PYTHON)
HERE = importlib.util.find_spec("tensorrt") is not None
pytestmark = pytest.mark.skipif(not PYTHON and not HERE, reason="no TensorRT")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TensorRtSettings:
    return TensorRtSettings(Path(PYTHON or sys.executable), level=0, cache=tmp_path_factory.mktemp("timings"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


def test_invalid_plan_file_is_rejected(settings: TensorRtSettings, tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(b"no plan" * 100)
    with pytest.raises(PlanError, match="cannot load it"):
        PlanProcess(settings, tmp_path / "model.plan")


@pytest.fixture(scope="module", params=[SPEAKER_ENCODER, CODEC_ENCODER], ids=lambda encoder: encoder.name)
def encoder_plan(
    request: pytest.FixtureRequest, checkpoint_of: CheckpointOf, repository: Path, settings: TensorRtSettings
) -> tuple[EncoderExport, Path]:
    """An encoder and the version folder of its plan, verified against PyTorch by the export."""
    encoder: EncoderExport = request.param
    folder, checkpoint = repository / encoder.name, Checkpoint.open(str(checkpoint_of("base")))
    with Progress(disable=True) as progress:
        print(export_encoder(encoder, checkpoint, folder, tensorrt(settings), progress))
    assert is_encoder_current(encoder, checkpoint, folder, tensorrt(settings))
    return encoder, folder / "1"


def test_encoder_plan_fits_this_machine(encoder_plan: tuple[EncoderExport, Path]) -> None:
    _, folder = encoder_plan
    needed = [encoders.input_shapes(MOST_FRAMES)]
    check_plan(folder, EncoderManifest.read(folder), torch.device("cuda", 0), needed)
