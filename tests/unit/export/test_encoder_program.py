"""The encoders as programs of torch.export and as ONNX graphs: files, agreement with the module, and refusals."""

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress
from torch import Tensor

from encoder_program.program import ONNX_FILE, EncoderProgram, InvalidInputError, OnnxEncoder
from export.encoders import CASES, CODEC_ENCODER, SPEAKER_ENCODER, EncoderExport, export_encoder, is_current
from export.forms.graph import Runtime
from export.forms.program_form import CODE, ONNX_PROGRAM, PROGRAM
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.voices import encoders
from tests.conftest import CheckpointOf

ENCODERS = {encoder.name: encoder for encoder in (SPEAKER_ENCODER, CODEC_ENCODER)}
CPU = torch.device("cpu")
each_encoder = pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)


@pytest.fixture(scope="module")
def checkpoint(checkpoint_of: CheckpointOf) -> Checkpoint:
    return Checkpoint.open(str(checkpoint_of("base")))


@pytest.fixture
def repository(tiny_encoder_programs: Path) -> Path:
    return tiny_encoder_programs


@pytest.fixture
def graphs(tiny_base_models: Path) -> Path:
    return tiny_base_models


def export_program(encoder: EncoderExport, checkpoint: Checkpoint, folder: Path, runtime: Runtime = PROGRAM) -> None:
    with Progress(disable=True) as progress:
        export_encoder(encoder, checkpoint, folder, runtime, progress)


@cache
def loaded(path: Path) -> EncoderProgram:
    return EncoderProgram.load(path, CPU)


def model_file(repository: Path, encoder: EncoderExport) -> Path:
    return repository / encoder.name / "1" / PROGRAM.filename


def inputs(encoder: EncoderExport, frames: int) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in encoder.inputs(frames).items()}


def test_biases_of_the_speaker_encoder_are_added_by_operations_of_their_own(repository: Path) -> None:
    """PyTorch's convolution without cuDNN whose taps are apart launches a kernel for the bias of each channel."""
    graph = torch.export.load(model_file(repository, SPEAKER_ENCODER)).graph
    convolutions = [node for node in graph.nodes if node.target is torch.ops.aten.conv1d.default]
    assert convolutions
    assert all(node.args[2:3] in [(), (None,)] for node in convolutions)


@each_encoder
def test_program_equals_the_module_at_all_lengths(
    encoder: EncoderExport, repository: Path, checkpoint: Checkpoint
) -> None:
    program, module = loaded(model_file(repository, encoder)), encoder.load(checkpoint)
    for frames in (*CASES, encoders.MAX_FRAMES):
        given = inputs(encoder, frames)
        with torch.inference_mode():
            expected = module(*given.values())
        found = program(given)
        assert found.shape == expected.shape
        assert encoder.error(expected.numpy(), found.numpy()) <= encoder.limit, frames


@each_encoder
def test_graph_equals_the_module_at_all_lengths(encoder: EncoderExport, graphs: Path, checkpoint: Checkpoint) -> None:
    graph, module = OnnxEncoder.load(graphs / encoder.name / "1" / ONNX_FILE), encoder.load(checkpoint)
    for frames in (*CASES, encoders.MAX_FRAMES):
        given = inputs(encoder, frames)
        with torch.inference_mode():
            expected = module(*given.values())
        assert encoder.error(expected.numpy(), graph(given).numpy()) <= encoder.limit, frames


def test_speaker_encoder_takes_five_mel_frames(repository: Path, checkpoint: Checkpoint) -> None:
    mel = torch.randn(1, 5, 128)
    found = loaded(model_file(repository, SPEAKER_ENCODER))({encoders.MEL: mel})
    with torch.inference_mode():
        torch.testing.assert_close(found, SPEAKER_ENCODER.load(checkpoint)(mel))


@each_encoder
def test_program_moves_to_another_device_as_a_whole(encoder: EncoderExport, repository: Path) -> None:
    """Device meta in place of a GPU: an operation on tensors of two devices would fail."""
    meta = torch.device("meta")
    program = EncoderProgram.load(model_file(repository, encoder), meta)
    for frames in (1, 83):
        given = {name: tensor.to(meta) for name, tensor in inputs(encoder, frames).items()}
        assert program._module(*given.values()).device == meta


@each_encoder
def test_warm_up_reaches_the_longest_usual_reference(encoder: EncoderExport, repository: Path) -> None:
    program = loaded(model_file(repository, encoder))
    usual = encoders.input_shapes(CASES[-1])
    assert program.contract.warm_up[-1] == {name: usual[name] for name in encoder.inputs(1)}
    program.warm_up()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("speaker_encoder", {"mel": None}, "mel: required"),
        ("speaker_encoder", {"mel": torch.zeros(1, 4, 128)}, r"given, float32 \[1, 5, 128\] to"),
        ("speaker_encoder", {"mel": torch.zeros(1, 11251, 128)}, r"to \[1, 11250, 128\] expected"),
        ("speaker_encoder", {"mel": torch.zeros(2, 7, 128)}, r"mel: float32 \[2, 7, 128\] given"),
        ("speaker_encoder", {"mel": torch.zeros(7, 128)}, r"mel: float32 \[7, 128\] given"),
        ("speaker_encoder", {"mel": torch.zeros(1, 7, 128).half()}, r"mel: float16 \[1, 7, 128\] given"),
        ("codec_encoder", {"audio": torch.zeros(1, 0, 1920)}, r"audio: float32 \[1, 0, 1920\] given"),
        ("codec_encoder", {"audio": torch.zeros(1, 1501, 1920)}, r"to \[1, 1500, 1920\] expected"),
        ("codec_encoder", {"num_samples": torch.zeros(1, 1)}, r"num_samples: float32 \[1, 1\] given, int32"),
    ],
)
def test_rejects_tensors_that_do_not_fit(
    name: str, change: dict[str, Any], message: str, repository: Path, graphs: Path
) -> None:
    encoder = ENCODERS[name]
    given = {key: value for key, value in (inputs(encoder, 2) | change).items() if value is not None}
    for load in (
        lambda: loaded(model_file(repository, encoder)),
        lambda: OnnxEncoder.load(graphs / name / "1" / ONNX_FILE),
    ):
        program = load()
        with pytest.raises(InvalidInputError, match=message):
            program(given)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 2**31 - 1])
def test_wrong_number_of_samples_does_not_index_outside(count: int, repository: Path) -> None:
    given = inputs(CODEC_ENCODER, 3) | {encoders.NUM_SAMPLES: torch.tensor([[count]], dtype=torch.int32)}
    assert loaded(model_file(repository, CODEC_ENCODER))(given).shape == (1, 3, 16)


def test_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / PROGRAM.filename
    with pytest.raises(ValueError, match=r"model\.pt2: missing; `python -m export --form python` writes it"):
        EncoderProgram.load(path, CPU)
    path.write_bytes(b"no program" * 100)
    with pytest.raises(ValueError, match=r"model\.pt2: cannot be loaded: .* run `python -m export --form python`"):
        EncoderProgram.load(path, CPU)
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(2),)), path)
    with pytest.raises(ValueError, match=r"model\.pt2: cannot be loaded"):
        EncoderProgram.load(path, CPU)


def test_missing_or_damaged_graph_is_named(tmp_path: Path) -> None:
    path = tmp_path / ONNX_FILE
    assert ONNX_PROGRAM.filename == ONNX_FILE
    with pytest.raises(ValueError, match=r"model\.onnx: missing; `python -m export --form onnx` writes it"):
        OnnxEncoder.load(path)
    path.write_bytes(b"no graph" * 100)
    with pytest.raises(ValueError, match=r"model\.onnx: cannot be loaded: .* run `python -m export --form onnx` again"):
        OnnxEncoder.load(path)


def test_model_folder_is_complete_and_current(repository: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "speaker_encoder_large"
    export_program(SPEAKER_ENCODER, checkpoint, folder)
    version = folder / "1"
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    package = {f"1/encoder_program/{name}.py" for name in ("__init__", "guard", "instance", "program")}
    assert found == {"config.pbtxt", "1/model.json", "1/model.pt2", "1/model.py"} | package
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    manifest = encoders.read_encoder(version, checkpoint.speaker_digest, checkpoint.folder)
    assert (manifest.form, manifest.opset, manifest.engine) == ("python", None, None)
    assert is_current(SPEAKER_ENCODER, checkpoint, folder, PROGRAM)
    assert not is_current(SPEAKER_ENCODER, checkpoint, folder, ONNX_PROGRAM)
    for path in (version / "model.py", version / "encoder_program" / "program.py"):
        content = path.read_bytes()
        path.write_bytes(content + b"# of another version\n")
        assert not is_current(SPEAKER_ENCODER, checkpoint, folder, PROGRAM)
        path.unlink()
        assert not is_current(SPEAKER_ENCODER, checkpoint, folder, PROGRAM)
        path.write_bytes(content)
    (version / PROGRAM.filename).unlink()
    assert not is_current(SPEAKER_ENCODER, checkpoint, folder, PROGRAM)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """model.py with a stand-in for Triton's utilities and without a guard."""

    class Error(Exception):
        INVALID_ARG, INTERNAL = "INVALID_ARG", "INTERNAL"

    utilities = SimpleNamespace(
        TritonError=Error,
        Logger=SimpleNamespace(log_info=print, log_warn=print),
        Tensor=SimpleNamespace(from_dlpack=lambda name, tensor: (name, tensor)),
        InferenceResponse=lambda tensors=(), error=None: SimpleNamespace(tensors=tensors, error=error),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utilities)
    monkeypatch.delenv("CUDA_MPS_CLIENT_PRIORITY", raising=False)
    spec = importlib.util.spec_from_file_location("encoder_model", CODE / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.guard, "start", lambda name: None)
    monkeypatch.setattr(module.gc, "freeze", lambda: None)
    yield module
    os.environ.pop("CUDA_MPS_CLIENT_PRIORITY", None)


def request_of(tensors: dict[str, Tensor]) -> Any:
    class Given(SimpleNamespace):
        def to_dlpack(self) -> Any:
            return self.tensor.__dlpack__()

    return SimpleNamespace(inputs=lambda: [Given(name=lambda n=n: n, tensor=t) for n, t in tensors.items()])


@pytest.mark.parametrize(("exported", "executor"), [("repository", "torch"), ("graphs", "onnxruntime")])
def test_model_answers_each_request_by_itself(
    model: ModuleType, exported: str, executor: str, checkpoint: Checkpoint, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(exported) / "speaker_encoder"
    served = model.TritonPythonModel()
    served.initialize(
        {
            "model_name": "speaker_encoder",
            "model_repository": str(folder),
            "model_version": "1",
            "model_config": json.dumps({"parameters": {"executor": {"string_value": executor}}}),
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
    )
    assert os.environ["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    given = inputs(SPEAKER_ENCODER, 7)
    wrong = {encoders.MEL: torch.zeros(1, 4, 128)}
    first, rejected, last = served.execute([request_of(given), request_of(wrong), request_of(given)])
    assert str(rejected.error.args[0]).startswith("INVALID_ARG: mel: float32 [1, 4, 128] given")
    assert rejected.error.args[1] == "INVALID_ARG"
    with torch.inference_mode():
        expected = SPEAKER_ENCODER.load(checkpoint)(*given.values()).numpy()
    for answer in (first, last):
        [(name, vector)] = answer.tensors
        assert name == encoders.X_VECTOR
        np.testing.assert_allclose(vector.numpy(), expected, atol=1e-5)
    served.finalize()


def test_failed_run_is_an_internal_error_of_its_request(
    model: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = model.TritonPythonModel()
    served._program = EncoderProgram.load(model_file(repository, SPEAKER_ENCODER), CPU)

    def fail(*arguments: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(served._program, "_module", fail)
    [failed] = served.execute([request_of(inputs(SPEAKER_ENCODER, 7))])
    assert failed.error.args == ("injected", "INTERNAL")
