"""A plan built for other hardware, versions or shapes is refused with an error that names the difference."""

import ctypes
from pathlib import Path

import pytest
import torch

from export.forms.tensorrt_form import plan_profile
from export.profiles import profile
from qwen3_tts_engine.checkpoint import tensorrt_plan
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import CodecManifest, EngineFacts
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, call_shapes, served_shapes

ENGINE = EngineFacts(
    library="tensorrt", version="10.14.1.48", gpu="NVIDIA H200", compute_capability="9.0", strongly_typed=True,
    plugin=True, level=3, layers=1, size=1, build_seconds=1, profiles=[plan_profile()],
)  # fmt: skip
MANIFEST = CodecManifest(
    form="tensorrt", state_size=1, state_dtype="FP16", codec_digest="", chunk_frames=[*CHUNK_FRAMES],
    sample_rate=24000, contract=3, opset=None, torch="", onnx="", commit=None, engine=ENGINE,
)  # fmt: skip
CUDA = torch.device("cuda", 0)
NEEDED = served_shapes(CHUNK_FRAMES)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(tensorrt_plan, "tensorrt_version", lambda engine: "10.14.1")
    (tmp_path / "model.plan").touch()
    return tmp_path


def test_accepts_a_plan_built_on_this_machine(folder: Path) -> None:
    tensorrt_plan.check_plan(folder, MANIFEST, CUDA, NEEDED)


def test_checks_nothing_for_other_forms(tmp_path: Path) -> None:
    tensorrt_plan.check_plan(tmp_path, MANIFEST.model_copy(update={"form": "onnx"}), torch.device("cpu"), NEEDED)


def test_missing_plan_names_the_export_command(folder: Path) -> None:
    (folder / "model.plan").unlink()
    with pytest.raises(CheckpointError, match=r"model\.plan: missing; `python -m export --form tensorrt`"):
        tensorrt_plan.check_plan(folder, MANIFEST, CUDA, NEEDED)


def test_refuses_a_plan_on_the_cpu(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="requires a CUDA device, this model runs on cpu"):
        tensorrt_plan.check_plan(folder, MANIFEST, torch.device("cpu"), NEEDED)


def test_refuses_a_manifest_without_engine_facts(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.json: engine: missing"):
        tensorrt_plan.check_plan(folder, MANIFEST.model_copy(update={"engine": None}), CUDA, NEEDED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "NVIDIA L4"}, "engine.gpu is NVIDIA L4, this machine has NVIDIA H200"),
        ({"gpu": None}, "engine.gpu is None, this machine has NVIDIA H200"),
        ({"version": "10.15.1.29"}, "engine.version is 10.15.1.29, TensorRT here is 10.14.1"),
        (
            {"profiles": [profile(*(call_shapes(rows, 8) for rows in (1, 32, 64)))]},
            r"engine.profiles: none supports codes \[64, 16, 16\], places \[64, 4\]",
        ),
        (
            {"profiles": [{"codes": [[1, 1, 16], [4, 4, 16], [32, 32, 16]]}]},
            r"engine.profiles: none supports codes \[64, 1, 16\]",
        ),
    ],
)
def test_names_the_difference(folder: Path, change: dict[str, object], message: str) -> None:
    manifest = MANIFEST.model_copy(update={"engine": ENGINE.model_copy(update=change)})
    with pytest.raises(CheckpointError, match=message) as refused:
        tensorrt_plan.check_plan(folder, manifest, CUDA, NEEDED)
    assert str(folder / "model.json") in str(refused.value)


def test_ignores_unknown_gpu_and_version() -> None:
    assert tensorrt_plan.differences(ENGINE, None, None, NEEDED) == []


@pytest.mark.parametrize(("number", "version"), [(101401, "10.14.1"), (110000, "11.0.0"), (8600, "8.6.0")])
def test_decodes_the_version_number_of_the_library(number: int, version: str) -> None:
    assert tensorrt_plan._decode(number) == version


def test_version_is_none_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert tensorrt_plan.tensorrt_version(ENGINE) is None


def test_summary_of_engine_facts() -> None:
    assert str(ENGINE) == (
        "tensorrt 10.14.1.48 for NVIDIA H200, level 3: codes [1, 1, 16] to [64, 16, 16], strongly typed, 0 MB, "
        "the plugin, 1 s"
    )
