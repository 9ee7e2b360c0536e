"""Clones with the encoders in Triton's Python backend, through a real tritonserver on the CPU."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from export.forms.program_form import PROGRAM
from scripts.server.installation import ServerError
from scripts.server.tritonserver import TritonServer
from tests.conftest import CheckpointOf
from tests.e2e.serving import Caller, repository_with, stub_pid
from tests.e2e.test_voices import IN_CONTEXT, SAID, X_VECTOR, assert_speech, expected_speech, greedy, serving
from tests.oracle.reference import load_processor, load_reference

DATATYPES = {"float32": "FP32", "int32": "INT32"}


@pytest.fixture(scope="module")
def repository(tiny_code2wav: Path, tiny_encoder_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The codec as ONNX, the encoders as programs."""
    repository = repository_with(tiny_code2wav, tmp_path_factory.mktemp("programs"))
    return shutil.copytree(tiny_encoder_programs, repository, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def server(
    repository: Path, checkpoint_of: CheckpointOf, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    with serving(repository, checkpoint_of("base"), tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def caller(server: TritonServer) -> Iterator[Caller]:
    with Caller(server) as caller:
        yield caller


def call(caller: Caller, model: str, **tensors: np.ndarray) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, tensor in tensors.items():
        request.inputs.add(name=name, datatype=DATATYPES[tensor.dtype.name], shape=tensor.shape)
        request.raw_input_contents.append(tensor.tobytes())
    return caller.stub.ModelInfer(request, timeout=30)


@pytest.mark.parametrize("said", [SAID, None], ids=["in-context", "x-vector-only"])
def test_clone_equals_the_reference(caller: Caller, checkpoint_of: CheckpointOf, said: str | None) -> None:
    base = checkpoint_of("base")
    reference = load_reference(base), load_processor(base)
    received = caller.speak(**greedy(**(IN_CONTEXT if said else X_VECTOR)))
    assert_speech(received, expected_speech(reference, greedy()["text"], said))


def test_malformed_call_is_rejected_and_the_next_one_succeeds(caller: Caller) -> None:
    audio, count = np.zeros((1, 2, 1920), np.float32), np.full((1, 1), 3840, np.int32)
    for model, tensors, message in (
        ("speaker_encoder", {"mel": np.zeros((1, 4, 128), np.float32)}, "INVALID_ARG: mel: float32 [1, 4, 128] given"),
        (
            "codec_encoder",
            {"audio": np.zeros((1, 1501, 1920), np.float32), "num_samples": count},
            "INVALID_ARG: audio: float32 [1, 1501, 1920] given, float32 [1, 1, 1920] to [1, 1500, 1920] expected",
        ),
    ):
        with pytest.raises(grpc.RpcError) as rejected:
            call(caller, model, **tensors)
        assert message in rejected.value.details()
        assert rejected.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    for number in (count, -count):
        [output] = call(caller, "codec_encoder", audio=audio, num_samples=number).outputs
        assert (output.name, list(output.shape)) == ("codes", [1, 2, 16])


# All models have the same guard (tests/unit/lifecycle/test_guard.py).
@pytest.mark.parametrize("model", ["codec_encoder", pytest.param("speaker_encoder", marks=pytest.mark.long)])
def test_killed_encoder_ends_the_request_and_the_server(
    model: str, repository: Path, checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    with serving(repository, checkpoint_of("base"), tmp_path) as server, Caller(server) as caller:
        os.kill(stub_pid(server, model), signal.SIGKILL)
        assert caller.speak(**greedy(**IN_CONTEXT)).error is not None
        assert server.wait(60) == -signal.SIGKILL
    log = (tmp_path / "server.log").read_text()
    assert f"guard: {model}: its process died; ending tritonserver with SIGKILL" in log


def test_server_names_a_missing_encoder_and_a_missing_program(
    repository: Path, checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    incomplete = shutil.copytree(repository, tmp_path / "model_repository", symlinks=True)
    shutil.rmtree(incomplete / "speaker_encoder")
    (incomplete / "codec_encoder" / "1" / PROGRAM.filename).unlink()
    with pytest.raises(ServerError, match="tritonserver ended"), serving(incomplete, checkpoint_of("base"), tmp_path):
        pass
    log = (tmp_path / "server.log").read_text()
    assert "codec_encoder/1/model.pt2: missing; `python -m export --form python` writes it" in log
    assert "speaker_encoder/1/model.json: missing; `python -m export` of the checkpoint writes it" in log
