"""The codec in Triton's Python backend, through a real tritonserver on the CPU."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import NUM_ROWS, PCM, PCM_SCALE, ZERO_ROW
from scripts.server.tritonserver import TritonServer
from tests.e2e.codec import FIRST_PUBLIC, NO_KEY, Codec, CodecStreams, ReferenceStreams, is_denied, places
from tests.e2e.serving import Caller, Received, eventually, repository_with, serve, stub_pid
from tests.e2e.test_streamed_text import SequenceStream

KEY = 1234


@pytest.fixture(scope="module")
def repository(tiny_python_code2wav: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = repository_with(tiny_python_code2wav, tmp_path_factory.mktemp("python"))
    config = repository / "code2wav" / "configs" / "python.pbtxt"
    config.write_text(config.read_text().replace("KIND_GPU", "KIND_CPU"))
    return repository


@contextmanager
def serving(repository: Path, folder: Path, checkpoint: Path, **settings: str) -> Iterator[Caller]:
    environment = {"QWEN3_TTS_CHECKPOINT": str(checkpoint), **settings}
    server: TritonServer
    with serve(repository, folder, environment) as server, Caller(server) as caller:
        yield caller


@pytest.fixture(scope="module")
def caller(repository: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    with serving(repository, tmp_path_factory.mktemp("server"), tiny_checkpoint) as caller:
        yield caller


@pytest.fixture
def codec(caller: Caller) -> Iterator[Codec]:
    """The same server's, beside its talker."""
    url = f"localhost:{caller.server.ports.grpc}"
    with InferenceServerClient(url) as client:
        yield Codec(url, client)


def test_chunks_equal_the_exported_step(codec: Codec, tiny_checkpoint: Path) -> None:
    step = CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint))).eval()
    codes, every = np.random.default_rng(0).integers(0, 2048, (3, 9, 16), np.int32), np.arange(3)
    streams = CodecStreams(codec, codec.claim(3, KEY), KEY)
    found = np.concatenate([streams.advance(every, chunk) for chunk in np.split(codes, [1, 4], axis=1)], axis=1)
    expected = ReferenceStreams(step, 3).advance(every, codes)
    assert found.shape == expected.shape == (3, 9 * 1920)
    assert np.abs(found.astype(int) - expected).max() < 5e-3 * PCM_SCALE


def test_malformed_request_is_rejected_and_the_next_one_succeeds(codec: Codec) -> None:
    expected = codec.call(codec.request())[PCM]
    assert expected.shape == (1, 2 * 1920)
    for request, message in (
        (codec.request(codes=np.full((1, 2, 16), 2048, np.int32)), "codes: 2048 given, 0 to 2047 expected"),
        (codec.request(1, 33), "codes: frames: 33 given, 1 to 32 expected"),
        (codec.request(places=places(FIRST_PUBLIC, FIRST_PUBLIC, 72)), "places: history: 72 given, 0 to 71 expected"),
        (codec.request(places=places(ZERO_ROW, NUM_ROWS)), f"places: rows: {NUM_ROWS} given, 0 to {NUM_ROWS - 1} exp"),
    ):
        with pytest.raises(InferenceServerException) as rejected:
            codec.call(request)
        assert f"INVALID_ARG: {message}" in rejected.value.message()
        assert rejected.value.status() == "StatusCode.INVALID_ARGUMENT"
        np.testing.assert_array_equal(codec.call(codec.request())[PCM], expected)


def test_another_caller_cannot_touch_the_talkers_rows(caller: Caller, codec: Codec) -> None:
    def speak() -> Received:
        return caller.speak("Hello there.", temperature=0.0, max_frames=40)

    alone, rows = speak(), np.arange(1, 9)
    assert alone.error is None
    assert len(alone.samples) > 1920
    assert np.abs(alone.samples).max() > 100
    with ThreadPoolExecutor(1) as pool:
        in_flight = pool.submit(speak)
        while not in_flight.done():
            for key in (NO_KEY, KEY):
                assert is_denied(codec.call(codec.request(8, places=places(ZERO_ROW, rows, 0, key)))[PCM]).all()
                assert is_denied(codec.call(codec.request(8, places=places(rows, rows, 5, key)))[PCM]).all()
    assert np.abs(in_flight.result().samples.astype(int) - alone.samples).max() < 200, "chunk boundaries may differ"


def open_stream(caller: Caller) -> SequenceStream:
    """Returns a stream that has begun to speak and waits for more text, so it cannot end by itself."""
    stream = SequenceStream(caller)
    stream.send("Hello there, ", start=True)
    eventually(lambda: stream.pcm != [] or stream.errors != [])
    assert stream.errors == stream.ends == []
    return stream


def processes_of(caller: Caller) -> list[psutil.Process]:
    processes: list[psutil.Process] = psutil.Process(caller.server.pid).children(recursive=True)
    assert len(processes) == 5, "two stubs with a guard each, and the engine"
    return processes


def alive_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that outlive their server."""
    alive: list[psutil.Process]
    _, alive = psutil.wait_procs(processes, timeout=60)
    return alive


def test_killed_engine_ends_every_stream_and_the_server(
    repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with serving(repository, tmp_path, tiny_checkpoint) as caller:
        stub = psutil.Process(stub_pid(caller.server, "qwen3_tts"))
        [engine] = [child for child in stub.children() if "engine_process.py" in " ".join(child.cmdline())]
        processes, stream = processes_of(caller), open_stream(caller)
        engine.kill()
        assert caller.server.wait(60) == -signal.SIGKILL
        stream.finish()
        assert not alive_of(processes)
    assert "UNAVAILABLE: the engine's process ended with exit code -9" in str(stream.errors)
    assert (
        "guard: qwen3_tts: its engine died; ending tritonserver with SIGKILL" in (tmp_path / "server.log").read_text()
    )


def test_all_processes_end_with_their_server(repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path, tiny_checkpoint) as caller:
        processes = processes_of(caller)
        caller.server.stop()
        assert not alive_of(processes)


def test_killed_codec_ends_every_stream_and_the_server(repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path, tiny_checkpoint) as caller:
        processes, stream = processes_of(caller), open_stream(caller)
        os.kill(stub_pid(caller.server, "code2wav"), signal.SIGKILL)
        assert caller.server.wait(60) == -signal.SIGKILL
        stream.finish()
        assert not alive_of(processes)
    assert stream.ends == []
    log = (tmp_path / "server.log").read_text()
    assert "guard: code2wav: its process died; ending tritonserver with SIGKILL" in log
