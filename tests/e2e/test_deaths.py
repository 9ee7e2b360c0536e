"""A dead process or engine ends every stream and the server; the launcher restarts it."""

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

import psutil
import pytest

from scripts.server.ports import Ports
from scripts.server.tritonserver import TritonServer, is_ready
from tests.e2e.serving import ROOT, Caller, Received, eventually, repository_with, serve, stub_pid
from tests.e2e.test_streams import assert_own_frames

FATAL_SEED, FAILING_SEED, SILENT_SEED = 666, 667, 668
STREAMS = 8
PATIENCE = 60.0
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def server(scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path) -> Iterator[TritonServer]:
    environment = scripted_environment | {"QWEN3_TTS_CALL_TIMEOUT_SECONDS": "2"}
    with serve(scripted_repository, tmp_path, environment) as server:
        yield server


@contextmanager
def streams_in_flight(server: TritonServer, max_frames: int = 4000) -> Iterator[list[Future[Received]]]:
    with Caller(server) as caller, ThreadPoolExecutor(STREAMS) as pool:
        in_flight = [pool.submit(caller.speak, seed=i, max_frames=max_frames) for i in range(STREAMS)]
        eventually(lambda: caller.metric("qwen3_tts_requests_running") == STREAMS)
        yield in_flight


def read_log(tmp_path: Path) -> str:
    return (tmp_path / "server.log").read_text()


def test_killed_talker_ends_every_stream_and_the_server(server: TritonServer, tmp_path: Path) -> None:
    regions = shared_memory_regions(server.pid)
    assert regions
    with streams_in_flight(server) as in_flight:
        os.kill(stub_pid(server, "qwen3_tts"), signal.SIGKILL)
        died = time.monotonic()
        assert server.wait(PATIENCE) == -signal.SIGKILL
        print(f"the server ended {time.monotonic() - died:.2f} s after the stub")
        assert all(future.result(PATIENCE).error for future in in_flight)
    assert "guard: qwen3_tts: its process died; ending tritonserver with SIGKILL" in read_log(tmp_path)
    # Other stubs unmap their regions when they detect that the server has exited.
    eventually(lambda: not any(Path(region).exists() for region in regions))


def test_dead_engine_ends_every_stream_and_the_server(server: TritonServer, tmp_path: Path) -> None:
    with streams_in_flight(server) as in_flight, Caller(server) as caller:
        fatal = caller.speak(seed=FATAL_SEED)
        for received in [fatal, *(future.result(PATIENCE) for future in in_flight)]:
            assert "the engine died: injected" in str(received.error)
    assert server.wait(PATIENCE) == -signal.SIGKILL
    assert "guard: qwen3_tts: its engine died; ending tritonserver with SIGKILL" in read_log(tmp_path)


def test_consecutive_codec_failures_end_the_server(server: TritonServer) -> None:
    with Caller(server) as caller:
        # Requests have one frame, so that no other of the same request can fail, too.
        errors = [str(caller.speak(seed=FAILING_SEED, max_frames=1).error) for _ in range(4)]
        assert all("the codec failed" in error or "code2wav" in error for error in errors)
        # A successful call resets the counter.
        assert_own_frames(caller.speak(seed=1, max_frames=9), 1, 9)
        errors = [str(caller.speak(seed=FAILING_SEED, max_frames=1).error) for _ in range(5)]
    assert "5 codec calls in a row failed (max_codec_failures)" in errors[-1]
    assert server.wait(PATIENCE) == -signal.SIGKILL


def test_codec_call_timeout_ends_the_server(server: TritonServer) -> None:
    stub = os.pidfd_open(stub_pid(server, "qwen3_tts"))
    with streams_in_flight(server) as in_flight, Caller(server) as caller:
        silent = caller.speak(seed=SILENT_SEED)
        for received in [silent, *(future.result(PATIENCE) for future in in_flight)]:
            assert "code2wav has not answered for 2 s (call_timeout_seconds)" in str(received.error)
    assert server.wait(PATIENCE) == -signal.SIGKILL
    # The stub exits although its call is pending, because the next server needs its memory.
    assert select.select([stub], [], [], PATIENCE)[0]
    os.close(stub)


def test_dead_engine_with_when_dead_unload_unloads_the_model(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    unload = scripted_environment | {"QWEN3_TTS_WHEN_DEAD": "unload"}
    with serve(scripted_repository, tmp_path, unload) as server, Caller(server) as caller:
        assert "injected" in str(caller.speak(seed=FATAL_SEED).error)
        # Checks the model, because Triton 2.51 reports the server as ready once the model is unloaded.
        eventually(lambda: not server.is_ready("qwen3_tts"))
        assert server.poll() is None


def test_dead_engine_with_when_dead_stay_rejects_requests(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    stay = scripted_environment | {"QWEN3_TTS_WHEN_DEAD": "stay"}
    with serve(scripted_repository, tmp_path, stay, options=()) as server, Caller(server) as caller:
        assert "injected" in str(caller.speak(seed=FATAL_SEED).error)
        assert str(caller.speak().error).startswith("UNAVAILABLE: the engine died: injected")


def stream_check(server: TritonServer, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "scripts.server.stream_check"]
    command += [f"--port={server.ports.grpc}", f"--process={server.pid}", "--interval=0.1", *options]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


@pytest.mark.long
def test_streams_that_hang_end_the_server(server: TritonServer) -> None:
    stub = stub_pid(server, "qwen3_tts")
    with stream_check(server, "--deadline=1") as check:
        # Several checks are answered.
        time.sleep(1)
        assert check.poll() is None
        os.kill(stub, signal.SIGSTOP)
        assert server.wait(PATIENCE) == -signal.SIGALRM
        _, log = check.communicate(timeout=PATIENCE)
    assert b"streams get no answer within 1 s; ending tritonserver with SIGALRM" in log


def test_a_busy_server_is_left_alone(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    """Eight endless loops beside the streams, for longer than the check waits for an answer: 10 s of frames."""
    with serve(scripted_repository, tmp_path, scripted_environment) as server:
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
        try:
            with streams_in_flight(server, max_frames=1000) as in_flight, stream_check(server) as check:
                assert all(future.result(PATIENCE * 5).error is None for future in in_flight)
                assert check.poll() is None
                check.terminate()
        finally:
            for loop in loops:
                loop.kill()
        assert server.poll() is None


def test_launcher_restarts_a_dead_server(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    ports = Ports.free()
    with launched(scripted_repository, scripted_environment, ports, tmp_path) as launcher:
        eventually(lambda: is_ready(ports, "qwen3_tts"), PATIENCE)
        with Caller(TritonServer(scripted_repository, ports=ports)) as caller:
            assert_own_frames(caller.speak(seed=1, max_frames=9), 1, 9)
            [check] = [
                c for c in psutil.Process(launcher.pid).children() if "scripts.server.stream_check" in c.cmdline()
            ]
            assert "injected" in str(caller.speak(seed=FATAL_SEED).error)
            eventually(lambda: "ended with exit code 137; it is started again" in read_log(tmp_path), PATIENCE)
            eventually(lambda: is_ready(ports, "qwen3_tts"), PATIENCE)
            assert not check.is_running()
        with Caller(TritonServer(scripted_repository, ports=ports)) as caller:
            assert_own_frames(caller.speak(seed=1, max_frames=9), 1, 9)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(PATIENCE) == 0


def test_nothing_outlives_a_killed_launcher(tiny_code2wav: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    repository, ports = repository_with(tiny_code2wav, tmp_path), Ports.free()
    with launched(repository, {"QWEN3_TTS_CHECKPOINT": str(tiny_checkpoint)}, ports, tmp_path) as launcher:
        eventually(lambda: is_ready(ports, "qwen3_tts"), 3 * PATIENCE)
        with Caller(TritonServer(repository, ports=ports)) as caller, ThreadPoolExecutor(1) as pool:
            spoken = pool.submit(caller.speak, max_frames=4000)
            eventually(lambda: caller.metric("qwen3_tts_requests_running") == 1)
            processes = psutil.Process(launcher.pid).children(recursive=True)
            assert [process.name() for process in processes].count("triton_python_backend_stub") == 2
            launcher.kill()
            _, alive = psutil.wait_procs(processes, PATIENCE)
            assert spoken.result(PATIENCE).error
    assert not alive


@contextmanager
def launched(
    repository: Path, environment: dict[str, str], ports: Ports, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher that scripts/serve.sh starts after the setup."""
    command = [sys.executable, "-m", "scripts.server", "serve", f"--model-repository={repository}"]
    command += [f"--build-folder={folder}", *ports.options]
    environment = dict(os.environ) | {"PROJECT_ROOT": str(ROOT)} | environment
    with (folder / "server.log").open("wb") as log:
        launcher = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield launcher
        finally:
            launcher.kill()
            launcher.wait()


def shared_memory_regions(process: int) -> set[str]:
    maps = Path(f"/proc/{process}/maps").read_text()
    return set(re.findall(rf"{SHARED_MEMORY}/triton_python_backend_shm_region\S+", maps))
