"""A server that drains: unready for balancers, closed to new requests, and open until its streams have ended."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scripts.server.drain import END_SECONDS, EXIT_SECONDS, NOTICE_SECONDS, REFUSING
from scripts.server.ports import Ports
from scripts.server.tritonserver import is_ready
from tests.e2e.serving import Caller, eventually
from tests.e2e.test_deaths import PATIENCE, launched
from tests.e2e.test_streamed_text import SequenceStream
from tests.e2e.test_streams import assert_own_frames

# 4 s at 10 ms a frame.
FRAMES = 400
LIMIT_SECONDS = 3.0
SECOND = "qwen3_tts_second"


class Launched:
    """A launcher and a caller of its server."""

    def __init__(self, process: subprocess.Popen[bytes], caller: Caller, folder: Path, ports: Ports) -> None:
        self.process, self.caller = process, caller
        self._drain_file = folder / f"drain-{ports.http}"

    def step(self) -> str:
        return self._drain_file.read_text().strip() if self._drain_file.exists() else ""

    def drain(self) -> None:
        """Returns once new requests are refused."""
        self.process.terminate()
        eventually(lambda: self.step() == REFUSING)


@pytest.fixture
def two_talkers(scripted_repository: Path, tmp_path: Path) -> Path:
    """A repository with a second talker."""
    repository = tmp_path / "model_repository"
    shutil.copytree(scripted_repository, repository)
    shutil.copytree(repository / "qwen3_tts", repository / SECOND)
    config = repository / SECOND / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "qwen3_tts"', f'name: "{SECOND}"', 1))
    return repository


@contextmanager
def serving(
    repository: Path, environment: dict[str, str], folder: Path, models: Sequence[str] = (), drain_seconds: float = 1000
) -> Iterator[Launched]:
    ports = Ports.free()
    folder.mkdir()
    settings = {"QWEN3_TTS_DRAIN_SECONDS": str(drain_seconds), "QWEN3_TTS_MAX_FRAMES_LIMIT": "8192"}
    with launched(repository, environment | settings, ports, folder) as process:
        # The talkers by their metrics, whose port opens last.
        eventually(lambda: is_ready(ports) and all(is_ready(ports, model) for model in models), PATIENCE)
        with Caller(SimpleNamespace(ports=ports)) as caller:  # type: ignore[arg-type]
            yield Launched(process, caller, folder, ports)


@pytest.fixture
def server(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Launched]:
    seconds = getattr(request, "param", 1000)
    with serving(scripted_repository, scripted_environment, tmp_path / "build", drain_seconds=seconds) as server:
        yield server


@pytest.fixture
def server_of_two(two_talkers: Path, scripted_environment: dict[str, str], tmp_path: Path) -> Iterator[Launched]:
    second = {f"{SECOND.upper()}_CHECKPOINT": scripted_environment["QWEN3_TTS_CHECKPOINT"]}
    with serving(two_talkers, scripted_environment | second, tmp_path / "build", [SECOND]) as server:
        yield server


def test_open_streams_of_all_models_finish_and_new_requests_are_refused(server_of_two: Launched) -> None:
    server, caller = server_of_two, server_of_two.caller
    words = SequenceStream(caller)
    words.send("These words ", start=True, max_frames=FRAMES)
    with ThreadPoolExecutor(3) as pool:
        streams = [pool.submit(caller.speak, seed=seed, max_frames=FRAMES) for seed in range(2)]
        second = pool.submit(caller.speak, seed=9, max_frames=FRAMES, model=SECOND)
        eventually(lambda: caller.metric("qwen3_tts_requests_open") == 4)
        server.drain()
        for model in ("qwen3_tts", SECOND):
            refused = caller.speak(seed=5, max_frames=1, model=model)
            assert refused.error == "UNAVAILABLE: the server is draining: send the request to another server"
        words.send("still arrive.", end=True)
        for seed, stream in enumerate(streams):
            assert_own_frames(stream.result(PATIENCE), seed, FRAMES)
        assert_own_frames(second.result(PATIENCE), 9, FRAMES)
        words.finish()
    assert words.errors == []
    assert server.process.wait(PATIENCE) == 0


def test_cancelled_streams_end_a_drain(server: Launched) -> None:
    streams = [server.caller.stream(seed=seed, max_frames=8000) for seed in range(2)]
    for stream in streams:
        next(stream)
    server.drain()
    assert server.process.poll() is None
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    # 8 000 frames would take 80 s.
    assert server.process.wait(PATIENCE) == 0


STOPPED = "UNAVAILABLE: the server is stopping: send the request to another server"


@pytest.mark.parametrize("server", [LIMIT_SECONDS], indirect=True)
def test_the_limit_ends_open_streams(server: Launched) -> None:
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.caller.speak, seed=3, max_frames=4000)
        eventually(lambda: server.caller.metric("qwen3_tts_requests_open") == 1)
        server.drain()
        began = time.monotonic()
        assert stream.result(PATIENCE).error == STOPPED
        assert time.monotonic() - began > LIMIT_SECONDS - 1
    assert server.process.wait(PATIENCE) == 0


def test_a_second_signal_ends_open_streams(server: Launched) -> None:
    words = SequenceStream(server.caller)
    words.send("These words ", start=True, max_frames=FRAMES)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.caller.speak, seed=3, max_frames=4000)
        eventually(lambda: server.caller.metric("qwen3_tts_requests_open") == 2)
        server.drain()
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert stream.result(PATIENCE).error == STOPPED
    words.finish()
    assert words.errors == [STOPPED]
    assert server.process.wait(PATIENCE) == 0
    assert time.monotonic() - began < END_SECONDS + EXIT_SECONDS


def test_a_client_that_holds_its_stream_open_delays_the_end_by_seconds(server: Launched) -> None:
    words = SequenceStream(server.caller)
    words.send("Hello.", start=True, end=True, max_frames=3)
    eventually(lambda: server.caller.metric("qwen3_tts_requests_open") == 0)
    began = time.monotonic()
    server.process.terminate()
    assert server.process.wait(PATIENCE) == 0
    assert time.monotonic() - began < NOTICE_SECONDS + END_SECONDS + EXIT_SECONDS + 5


def test_a_signal_to_tritonserver_ends_it_for_good(server: Launched) -> None:
    [triton] = [p for p in psutil.Process(server.process.pid).children() if p.name() == "tritonserver"]
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.caller.speak, seed=3, max_frames=4000)
        eventually(lambda: server.caller.metric("qwen3_tts_requests_open") == 1)
        triton.terminate()
        began = time.monotonic()
        assert str(stream.result(PATIENCE).error).startswith("UNAVAILABLE")
    assert server.process.wait(PATIENCE) == 0
    assert time.monotonic() - began < EXIT_SECONDS + 5
