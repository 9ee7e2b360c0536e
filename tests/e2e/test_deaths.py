"""Whoever dies, every stream ends, the server ends with an exit code, and what started it starts it again."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.embedded.server import Ports, TritonServer, is_ready
from tests.e2e.serving import ROOT, Heard, Voice, eventually, serve, stub_of
from tests.e2e.test_streams import assert_own_frames

DEADLY_SEED, FAILING_SEED, SILENT_SEED = 666, 667, 668
STREAMS = 8
PATIENCE = 60.0
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def server(scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path) -> Iterator[TritonServer]:
    environment = scripted_environment | {"QWEN3_TTS_CALL_TIMEOUT_SECONDS": "2"}
    with serve(scripted_repository, tmp_path, environment) as server:
        yield server


@contextmanager
def streams_in_flight(server: TritonServer) -> Iterator[list[Future[Heard]]]:
    with Voice(server) as voice, ThreadPoolExecutor(STREAMS) as pool:
        living = [pool.submit(voice.hear, seed=i, max_frames=4000) for i in range(STREAMS)]
        eventually(lambda: voice.metric("qwen3_tts_requests_running") == STREAMS)
        yield living


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "server.log").read_text()


def test_a_killed_talker_ends_every_stream_and_the_server(server: TritonServer, tmp_path: Path) -> None:
    regions = regions_of(server.pid)
    assert regions
    with streams_in_flight(server) as living:
        os.kill(stub_of(server, "qwen3_tts"), signal.SIGKILL)
        died = time.monotonic()
        assert server.wait(PATIENCE) == -signal.SIGKILL
        print(f"the server ended {time.monotonic() - died:.2f} s after the stub")
        assert all(future.result(PATIENCE).error for future in living)
    assert "guard: qwen3_tts: its process died; ending tritonserver with SIGKILL" in log_of(tmp_path)
    # The other models' processes unmap theirs when they find the server gone.
    eventually(lambda: not any(Path(region).exists() for region in regions))


def test_a_dead_engine_ends_every_stream_and_then_the_server(server: TritonServer, tmp_path: Path) -> None:
    with streams_in_flight(server) as living, Voice(server) as voice:
        deadly = voice.hear(seed=DEADLY_SEED)
        for heard in [deadly, *(future.result(PATIENCE) for future in living)]:
            assert "the engine died: injected" in str(heard.error)
    assert server.wait(PATIENCE) == -signal.SIGKILL
    assert "guard: qwen3_tts: its engine died; ending tritonserver with SIGKILL" in log_of(tmp_path)


def test_codec_calls_that_fail_in_a_row_are_a_death(server: TritonServer) -> None:
    with Voice(server) as voice:
        errors = [str(voice.hear(seed=FAILING_SEED).error) for _ in range(4)]
        assert all("the codec failed" in error or "code2wav" in error for error in errors)
        # One that works begins the count again.
        assert_own_frames(voice.hear(seed=1, max_frames=9), 1, 9)
        errors = [str(voice.hear(seed=FAILING_SEED).error) for _ in range(5)]
    assert "5 codec calls in a row failed (max_codec_failures)" in errors[-1]
    assert server.wait(PATIENCE) == -signal.SIGKILL


def test_a_codec_call_without_an_answer_is_a_death(server: TritonServer) -> None:
    stub = os.pidfd_open(stub_of(server, "qwen3_tts"))
    with streams_in_flight(server) as living, Voice(server) as voice:
        silent = voice.hear(seed=SILENT_SEED)
        for heard in [silent, *(future.result(PATIENCE) for future in living)]:
            assert "code2wav has not answered for 2 s (call_timeout_seconds)" in str(heard.error)
    assert server.wait(PATIENCE) == -signal.SIGKILL
    # Though it still waits for the answer: its memory is what the next server needs.
    assert select.select([stub], [], [], PATIENCE)[0]
    os.close(stub)


def test_a_dead_engine_unloads_its_model_where_it_is_asked_to(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    unload = scripted_environment | {"QWEN3_TTS_WHEN_DEAD": "unload"}
    with serve(scripted_repository, tmp_path, unload) as server, Voice(server) as voice:
        assert "injected" in str(voice.hear(seed=DEADLY_SEED).error)
        # Of the server Triton 2.51 says that it is ready again, once the model is gone.
        eventually(lambda: not server.is_ready("qwen3_tts"))
        assert server.poll() is None


def test_a_dead_engine_refuses_at_once_where_the_server_stays(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    stay = scripted_environment | {"QWEN3_TTS_WHEN_DEAD": "stay"}
    with serve(scripted_repository, tmp_path, stay, options=()) as server, Voice(server) as voice:
        assert "injected" in str(voice.hear(seed=DEADLY_SEED).error)
        assert str(voice.hear().error).startswith("UNAVAILABLE: the engine died: injected")


def test_models_that_are_unloaded_end_nothing(server: TritonServer, tmp_path: Path) -> None:
    assert server.stop() == 0
    assert "guard" not in log_of(tmp_path)


def test_the_launcher_serves_again(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    ports = Ports.free()
    with launched(scripted_repository, scripted_environment, ports, tmp_path) as launcher:
        eventually(lambda: is_ready(ports, "qwen3_tts"), PATIENCE)
        with Voice(TritonServer(scripted_repository, ports=ports)) as voice:
            assert_own_frames(voice.hear(seed=1, max_frames=9), 1, 9)
            assert "injected" in str(voice.hear(seed=DEADLY_SEED).error)
            eventually(lambda: "ended with exit code 137; it is started again" in log_of(tmp_path), PATIENCE)
            eventually(lambda: is_ready(ports, "qwen3_tts"), PATIENCE)
        with Voice(TritonServer(scripted_repository, ports=ports)) as voice:
            assert_own_frames(voice.hear(seed=1, max_frames=9), 1, 9)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(PATIENCE) == 0


@contextmanager
def launched(
    repository: Path, environment: dict[str, str], ports: Ports, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """scripts/serve.sh behind its installation."""
    command = [sys.executable, "-m", "scripts.embedded.server", f"--model-repository={repository}"]
    command += [f"--build-folder={folder}", *ports.options]
    environment = dict(os.environ) | {"PROJECT_ROOT": str(ROOT)} | environment
    with (folder / "server.log").open("wb") as log:
        launcher = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield launcher
        finally:
            launcher.kill()
            launcher.wait()


def regions_of(process: int) -> set[str]:
    maps = Path(f"/proc/{process}/maps").read_text()
    return set(re.findall(rf"{SHARED_MEMORY}/triton_python_backend_shm_region\S+", maps))
