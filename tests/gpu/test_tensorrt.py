"""TensorRT plans of the tiny codec and the encoders: export, checks and the stand-in backend.

QWEN3_TTS_TENSORRT_PYTHON selects the Python that has TensorRT.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from rich.progress import Progress

from export.code2wav import Exported, export, is_current
from export.encoders import CODEC_ENCODER, COMMON_FRAMES, MOST_FRAMES, SPEAKER_ENCODER, EncoderExport, export_encoder
from export.encoders import is_current as is_encoder_current
from export.forms.form import Form
from export.forms.tensorrt_form import tensorrt_form
from export.forms.tensorrt_plan import tensorrt
from export.tensorrt.process import TENSORRT_PYTHON, PlanError, PlanProcess, TensorRtSettings
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.manifest import CodecManifest, EncoderManifest
from qwen3_tts_engine.checkpoint.tensorrt_plan import check_plan
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_FRAMES, served_shapes
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
def form(settings: TensorRtSettings) -> Form:
    return tensorrt_form(settings)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def exported(checkpoint: Checkpoint, repository: Path, form: Form) -> Exported:
    with Progress(disable=True) as progress:
        return export(checkpoint, repository, form, progress)


def test_exported_plan_agrees_with_pytorch_and_reports_times(exported: Exported, settings: TensorRtSettings) -> None:
    assert exported.agreement.snr_db > 35
    assert exported.lines[1].startswith("verified 320 shapes (batches 1 to 64 x 1, 2, 4, 8, 16 frames)")
    assert len(exported.lines) == 6
    assert any(settings.cache.iterdir())


def test_plan_fits_this_machine(exported: Exported, repository: Path, checkpoint: Checkpoint, form: Form) -> None:
    folder = repository / "code2wav" / "1"
    manifest = CodecManifest.read(folder)
    check_plan(folder, manifest, torch.device("cuda", 0), served_shapes(CHUNK_FRAMES, manifest.state_size))
    assert is_current(checkpoint, repository, form)


def test_invalid_plan_file_is_rejected(settings: TensorRtSettings, tmp_path: Path) -> None:
    (tmp_path / "model.plan").write_bytes(b"no plan" * 100)
    with pytest.raises(PlanError, match="cannot load it"):
        PlanProcess(settings, tmp_path / "model.plan")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the stand-in backend, imported as in the server."""
    for folder in ("shared", "tensorrt"):
        monkeypatch.syspath_prepend(str(BACKENDS / folder))
    for name in ("merged_runs", "plan", "own_plan", "other_plan", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    return importlib.import_module("model")


def test_stand_in_agrees_with_the_verified_plan_and_rejects_other_shapes(
    exported: Exported, repository: Path, form: Form, stand_in: ModuleType
) -> None:
    path = repository / "code2wav" / "1" / "model.plan"
    plan, verified = stand_in.open_plan(path, torch.device("cuda", 0)), form.load(path)
    size = CodecManifest.read(path.parent).state_size
    random = np.random.default_rng(0)
    for rows, frames in ((1, 1), (3, 2), (4, 2), (7, 8), (MAX_BATCH, 4)):
        codes = torch.from_numpy(random.integers(0, 2048, (rows, frames, 16), np.int32))
        state = torch.from_numpy(random.standard_normal((rows, size)).astype(np.float16))
        history = torch.from_numpy(random.integers(0, 72, (rows, 1), np.int32))
        tensors = {"codes": codes, "state": state, "history": history}
        outputs = plan.run(tensors)
        waveform, state_out = verified(codes, state.float(), history)
        torch.testing.assert_close(outputs["waveform"], waveform, atol=1e-3, rtol=1e-7)
        torch.testing.assert_close(outputs["state_out"].float(), state_out, atol=1e-2, rtol=1e-7)
    for frames in (3, MAX_FRAMES):
        unverified = tensors | {"codes": torch.zeros(MAX_BATCH, frames, 16, dtype=torch.int32)}
        with pytest.raises(stand_in.InvalidInputError, match=rf"the plan does not support codes \[64, {frames}, 16\]"):
            plan.run(unverified)


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


def test_stand_in_agrees_with_the_verified_encoder_plan(
    encoder_plan: tuple[EncoderExport, Path], settings: TensorRtSettings, stand_in: ModuleType
) -> None:
    encoder, folder = encoder_plan
    path = folder / "model.plan"
    plan, verified = stand_in.open_plan(path, torch.device("cuda", 0)), PlanProcess(settings, path)
    for frames in (1, COMMON_FRAMES, MOST_FRAMES):
        inputs = encoder.inputs(frames)
        found = plan.run({name: torch.from_numpy(array) for name, array in inputs.items()})
        np.testing.assert_allclose(found[encoder.output].cpu().numpy(), verified(inputs)[encoder.output], atol=1e-5)
    too_long = {name: torch.from_numpy(array) for name, array in encoder.inputs(MOST_FRAMES + 1).items()}
    with pytest.raises(stand_in.InvalidInputError, match="the plan does not support"):
        plan.run(too_long)
