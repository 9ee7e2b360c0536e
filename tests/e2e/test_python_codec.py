"""The codec in Triton's Python backend, through a real tritonserver on the CPU."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import torch
from rich.progress import Progress
from tritonclient.grpc import service_pb2

from export.code2wav import export
from export.forms.python_form import PYTHON
from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from scripts.embedded.server import EXPLICIT, TritonServer
from tests.e2e.serving import Caller, copy_repository, eventually, serve, stub_pid

DATATYPES = {"codes": "INT32", "state": "FP16", "history": "INT32"}


@pytest.fixture(scope="module")
def repository(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = copy_repository(tmp_path_factory.mktemp("python") / "model_repository", fakes=False)
    with Progress(disable=True) as progress:
        export(Checkpoint.open(str(tiny_checkpoint)), repository, PYTHON, progress)
    config = repository / "code2wav" / "configs" / "python.pbtxt"
    config.write_text(config.read_text().replace("KIND_GPU", "KIND_CPU"))
    return repository


@contextmanager
def serving(repository: Path, folder: Path, checkpoint: Path, **settings: str) -> Iterator[Caller]:
    environment = {"QWEN3_TTS_CHECKPOINT": str(checkpoint), **settings}
    options = (*EXPLICIT, "--model-config-name=python")
    server: TritonServer
    with serve(repository, folder, environment, options) as server, Caller(server) as caller:
        yield caller


@pytest.fixture(scope="module")
def caller(repository: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    with serving(repository, tmp_path_factory.mktemp("server"), tiny_checkpoint) as caller:
        yield caller


def step(caller: Caller, **tensors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    request = service_pb2.ModelInferRequest(model_name="code2wav")
    for name, tensor in tensors.items():
        request.inputs.add(name=name, datatype=DATATYPES[name], shape=tensor.shape)
        request.raw_input_contents.append(tensor.tobytes())
    response = caller.stub.ModelInfer(request, timeout=30)
    contents = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=True))
    rows = len(tensors["codes"])
    waveform, state = (
        np.frombuffer(contents["waveform"], np.float32),
        np.frombuffer(contents["state_out"], np.float16),
    )
    return waveform.reshape(rows, -1), state.reshape(rows, -1)


def test_chunks_equal_the_exported_step(caller: Caller, tiny_checkpoint: Path) -> None:
    reference = CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)))
    codes = np.random.default_rng(0).integers(0, 2048, (3, 9, 16), np.int32)
    state, parts, start = np.zeros((3, reference.state_size), np.float16), [], 0
    for frames in (1, 3, 5):
        history = np.full((3, 1), start, np.int32)
        waveform, state = step(caller, codes=codes[:, start : start + frames], state=state, history=history)
        parts.append(waveform)
        start += frames
    with torch.inference_mode():
        inputs = (torch.from_numpy(codes), torch.zeros(3, reference.state_size), torch.zeros(3, 1, dtype=torch.int32))
        expected, _ = reference(*inputs)
    assert np.abs(np.concatenate(parts, axis=1) - expected.numpy()).max() < 5e-3


def test_malformed_request_is_rejected_and_the_next_one_succeeds(caller: Caller, tiny_checkpoint: Path) -> None:
    size = CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint))).state_size
    valid = {
        "codes": np.zeros((1, 2, 16), np.int32),
        "state": np.zeros((1, size), np.float16),
        "history": np.zeros((1, 1), np.int32),
    }
    for change, message in (
        ({"codes": valid["codes"] + 2048}, "INVALID_ARG: codes: 2048 given, 0 to 2047 expected"),
        ({"codes": np.zeros((1, 33, 16), np.int32)}, "INVALID_ARG: codes: frames: 33 given, 1 to 32 expected"),
        ({"history": valid["history"] + 72}, "INVALID_ARG: history: 72 given, 0 to 71 expected"),
        ({"state": valid["state"][:, 1:]}, f"INVALID_ARG: state: float16 [1, {size - 1}] given"),
    ):
        with pytest.raises(grpc.RpcError) as rejected:
            step(caller, **valid | change)
        assert message in rejected.value.details()
        assert rejected.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert step(caller, **valid)[0].shape == (1, 2 * 1920)


def test_shared_and_copied_codec_states_give_the_same_speech(
    caller: Caller, repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    received = caller.speak("Hello there.", temperature=0.0, max_frames=20)
    assert received.error is None
    assert len(received.samples) > 1920
    assert np.abs(received.samples).max() > 100
    with serving(repository, tmp_path, tiny_checkpoint, QWEN3_TTS_SHARED_CODEC_STATES="off") as other:
        again = other.speak("Hello there.", temperature=0.0, max_frames=20)
    assert "codec states: sent with each call" in (tmp_path / "server.log").read_text()
    assert np.abs(received.samples.astype(int) - again.samples).max() < 200, "chunk boundaries may differ"


def test_calls_through_triton_give_the_same_speech(
    caller: Caller, repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    def speak(seed: int) -> np.ndarray:
        return caller.speak("Hello there.", seed=seed, max_frames=20).samples

    def calls(server: Caller) -> float:
        return server.metric("nv_inference_exec_count_total", model="code2wav")

    speak(0)
    before = calls(caller)
    with ThreadPoolExecutor(8) as pool:
        spoken = list(pool.map(speak, range(8)))
    assert calls(caller) == before, "the line is open"
    with serving(repository, tmp_path, tiny_checkpoint, QWEN3_TTS_CODEC_CALLS="triton") as other:
        for seed, samples in enumerate(spoken):
            expected = other.speak("Hello there.", seed=seed, max_frames=20).samples
            assert np.abs(samples.astype(int) - expected).max() < 200, "chunk boundaries may differ"
        assert calls(other) >= len(spoken)
    assert "codec calls: by a direct line" not in (tmp_path / "server.log").read_text()


def test_killed_engine_ends_every_stream_and_the_server(
    repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with serving(repository, tmp_path, tiny_checkpoint) as caller, ThreadPoolExecutor(1) as pool:
        stub = psutil.Process(stub_pid(caller.server, "qwen3_tts"))
        [engine] = [child for child in stub.children() if "engine_process.py" in " ".join(child.cmdline())]
        in_flight = pool.submit(caller.speak, "Hello there.", temperature=0.0, max_frames=4000)
        eventually(lambda: caller.metric("qwen3_tts_requests_running") == 1)
        engine.kill()
        assert "UNAVAILABLE: the engine's process ended with exit code -9" in str(in_flight.result(60).error)
        assert caller.server.wait(60) == -signal.SIGKILL
    assert (
        "guard: qwen3_tts: its engine died; ending tritonserver with SIGKILL" in (tmp_path / "server.log").read_text()
    )


def test_an_engine_in_tritons_process_gives_the_same_speech(
    caller: Caller, repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    samples = caller.speak("Hello there.", seed=1, max_frames=20).samples
    with serving(repository, tmp_path, tiny_checkpoint, QWEN3_TTS_ENGINE_PROCESS="off") as other:
        assert not psutil.Process(stub_pid(other.server, "qwen3_tts")).children(recursive=True)[1:], "only its guard"
        again = other.speak("Hello there.", seed=1, max_frames=20).samples
    assert np.abs(samples.astype(int) - again).max() < 200, "chunk boundaries may differ"


def test_the_engine_ends_with_its_server(repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with serving(repository, tmp_path, tiny_checkpoint) as caller:
            stub = psutil.Process(stub_pid(caller.server, "qwen3_tts"))
            processes = [stub, *stub.children(recursive=True)]
            assert len(processes) == 3, "stub, engine and guard"
            os.kill(caller.server.pid, number)
            _, alive = psutil.wait_procs(processes, timeout=60)
            assert not alive


@pytest.mark.parametrize("calls", ["triton", "direct"])
def test_killed_codec_ends_every_stream_and_the_server(
    repository: Path, tiny_checkpoint: Path, tmp_path: Path, calls: str
) -> None:
    with serving(repository, tmp_path, tiny_checkpoint, QWEN3_TTS_CODEC_CALLS=calls) as caller:
        assert caller.speak("Hello there.", max_frames=4).error is None
        with ThreadPoolExecutor(1) as pool:
            in_flight = pool.submit(caller.speak, "Hello there.", temperature=0.0, max_frames=4000)
            eventually(lambda: caller.metric("qwen3_tts_requests_running") == 1)
            os.kill(stub_pid(caller.server, "code2wav"), signal.SIGKILL)
            assert in_flight.result(60).error is not None
        assert caller.server.wait(60) == -signal.SIGKILL
    log = (tmp_path / "server.log").read_text()
    assert "guard: code2wav: its process died; ending tritonserver with SIGKILL" in log
