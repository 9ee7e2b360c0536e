"""The guard ends the server when the model's stub process dies or reports a failure, and only then."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qwen3_tts_engine.lifecycle.guard import DEAD, UNUSABLE, exit_signal
from tests.subprocesses import same_imports

# A stand-in server and its stub, which executes the command on the server's standard input.
STUB = """
import os, signal, sys, time
from qwen3_tts_engine.lifecycle.guard import Guard
guard = Guard("talker")
print(os.getpid(), flush=True)
match sys.stdin.readline().strip():
    case "die": os.kill(os.getpid(), signal.SIGKILL)
    case "unload": guard.close()
    case "fail": guard.end_server()
    case "refuse": guard.end_server(unusable=True)
    case "stay": time.sleep(3600)
sys.stdin.read()
"""
SERVER = f"""
import subprocess, sys, time
stub = subprocess.Popen([sys.executable, "-c", {STUB!r}])
stub.wait()
sys.stdin.read()
time.sleep(1)
sys.exit(5)
"""


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        ("die", -signal.SIGKILL, "its process died"),
        ("fail", -signal.SIGKILL, "its engine died"),
        ("refuse", -signal.SIGUSR1, "it cannot serve"),
        ("unload", 5, None),
    ],
)
def test_the_server_ends_with_the_signal_of_its_stubs_failure(command: str, code: int, reason: str | None) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=same_imports(),
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stderr is not None
    with server.stdin, server.stdout, server.stderr:
        server.stdout.readline()
        server.stdin.write(f"{command}\n")
        server.stdin.flush()
        if command == "unload":
            server.stdin.close()
        assert server.wait(30) == code
        if reason is None:
            assert server.stderr.read() == ""
        else:
            chosen = signal.Signals(-code).name
            assert server.stderr.readline() == f"guard: talker: {reason}; ending tritonserver with {chosen}\n"


def test_a_hanging_stub_ends_after_its_server() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=same_imports()
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stub = os.pidfd_open(int(server.stdout.readline()))
        server.stdin.write(b"stay\n")
        server.stdin.flush()
        server.kill()
        assert select.select([stub], [], [], 30)[0]
        os.close(stub)


def test_a_stub_whose_server_ends_while_it_loads_ends_itself() -> None:
    stub = """
import os, sys, time
from qwen3_tts_engine.lifecycle import guard
print(os.getpid(), flush=True)
while os.getppid() == guard.SERVER:
    time.sleep(0.01)
guard.start("talker")
time.sleep(3600)
"""
    server = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stub!r}])"
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, env=same_imports()) as process:
        assert process.stdout is not None
        loading = os.pidfd_open(int(process.stdout.readline()))
        process.kill()
        assert select.select([loading], [], [], 30)[0]
        os.close(loading)


def test_the_first_process_of_a_container_gets_sigterm() -> None:
    """The kernel does not deliver signals without a handler to process 1."""
    assert {exit_signal(word, 1) for word in (b"", DEAD, UNUSABLE)} == {signal.SIGTERM}
    assert exit_signal(b"", 2) == signal.SIGKILL


def test_all_models_have_the_same_guard() -> None:
    root = Path(__file__).parents[3]
    talker = root / "model_repository" / "qwen3_tts" / "1" / "qwen3_tts_engine" / "lifecycle" / "guard.py"
    for package in ("model_repository/code2wav/1/code2wav_step", "export/models/python/encoder_program"):
        assert (root / package / "guard.py").resolve() == talker


def test_an_abort_after_the_unload_leaves_no_core_file() -> None:
    program = (
        "import ctypes\nfrom qwen3_tts_engine.lifecycle.guard import Guard\nget = 3\n"
        "print(ctypes.CDLL(None).prctl(get))\nGuard('talker').close()\nprint(ctypes.CDLL(None).prctl(get))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=same_imports(), check=True)
    assert done.stdout.split() == ["1", "0"]
