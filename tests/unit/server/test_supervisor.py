"""Restarts of a dead server, the limit on failed starts, and forwarded signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from scripts.server.drain import Drain
from scripts.server.supervisor import Patience, Supervisor

HASTY = Patience(max_failed_starts=3, pause_seconds=0.001)


def inherited() -> AbstractContextManager[Mapping[str, str]]:
    return nullcontext(os.environ)


def server(tmp_path: Path, *bodies: str) -> list[str]:
    """A command that runs the next of `bodies`, shell code, each time it starts."""
    for number, body in enumerate(bodies):
        (tmp_path / f"body{number}").write_text(body)
    (tmp_path / "count").write_text("0")
    script = f'cd {tmp_path}; n=$(cat count); echo $((n + 1)) >count; . "./body$n"'
    return ["sh", "-c", script]


def starts(tmp_path: Path) -> int:
    return int((tmp_path / "count").read_text())


def test_gives_up_on_a_server_that_never_becomes_ready(tmp_path: Path) -> None:
    supervisor = Supervisor(server(tmp_path, *["exit 3"] * 9), inherited, lambda: False, HASTY)
    assert supervisor.run() == 3
    assert starts(tmp_path) == HASTY.max_failed_starts


def test_restarts_a_server_that_was_ready_without_limit(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    # Runs until it has been seen to be ready.
    body = "touch ready; while [ -e ready ]; do sleep 0.01; done; kill -9 $$"
    command = server(tmp_path, *[body] * 6, "exit 0")

    def is_ready() -> bool:
        if ready.exists():
            ready.unlink()
            return True
        return False

    assert Supervisor(command, inherited, is_ready, HASTY).run() == 0
    assert starts(tmp_path) == 7


def test_gives_up_on_a_ready_server_that_exits_as_unable_to_serve(tmp_path: Path) -> None:
    command = server(tmp_path, *["sleep 1; kill -USR1 $$"] * 9)
    assert Supervisor(command, inherited, lambda: True, HASTY).run() == 128 + signal.SIGUSR1
    assert starts(tmp_path) == HASTY.max_failed_starts


def test_a_signal_before_the_start_is_the_end(tmp_path: Path) -> None:
    command = server(tmp_path, "exit 3")

    @contextmanager
    def stopped() -> Iterator[Mapping[str, str]]:
        supervisor.stop(signal.SIGTERM)
        yield os.environ

    supervisor = Supervisor(command, stopped, lambda: False, HASTY)
    assert supervisor.run() == 0
    assert starts(tmp_path) == 0


class SignalledAtTheStart(Supervisor):
    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if isinstance(value, subprocess.Popen):
            wait_for(Path("trapped").exists)
            self.stop(signal.SIGTERM)


def test_a_signal_during_the_start_reaches_the_server_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = server(tmp_path, "trap 'exit 7' TERM; touch trapped; while :; do sleep 0.01; done")
    assert SignalledAtTheStart(command, inherited, lambda: False, HASTY).run() == 7


def test_pauses_double_with_failed_starts() -> None:
    assert [Patience().pause(n) for n in range(4)] == [0, 1, 2, 4]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_forwards_signals_and_returns_the_servers_exit_code(number: signal.Signals) -> None:
    body = f"trap 'exit 7' {number.name[3:]}; echo ready; while :; do sleep 0.01; done"
    program = (
        "import os, sys\nfrom contextlib import nullcontext\nfrom scripts.server.supervisor import supervise\n"
        f'sys.exit(supervise(["sh", "-c", {body!r}, "--http-port=1"], lambda: nullcontext(os.environ)))'
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == 7


# Records that it was ended; ready from its start.
DRAINED = "trap 'echo ended >>ended; exit 7' TERM; echo started; touch started; while :; do sleep 0.01; done"


def drained(tmp_path: Path, seconds: float) -> subprocess.Popen[bytes]:
    """A supervisor whose server is ready and drains until a file `idle` exists."""
    program = (
        "import os, sys\nfrom contextlib import nullcontext\nfrom pathlib import Path\n"
        "from scripts.server import drain, supervisor\n"
        "drain.is_idle = lambda metrics: Path('idle').exists()\n"
        "supervisor.responds = lambda url: Path('started').exists() and os.write(1, b'ready\\n') > 0\n"
        f"one = drain.Drain(Path('drain'), 'http://localhost:9/', {seconds}, notice_seconds=0)\n"
        f"server = ['sh', '-c', {DRAINED!r}]\n"
        "sys.exit(supervisor.supervise(server, lambda: nullcontext(os.environ), one))"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", program]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"started\n", b"ready\n"]
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def test_the_first_signal_drains_a_ready_server(tmp_path: Path) -> None:
    with drained(tmp_path, seconds=1000) as process:
        process.terminate()
        wait_for(lambda: (tmp_path / "drain").exists() and (tmp_path / "drain").read_text() == "refusing\n")
        assert process.poll() is None
        assert not (tmp_path / "ended").exists()
        (tmp_path / "idle").touch()
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0, "whatever tritonserver returns"
    assert (tmp_path / "ended").read_text() == "ended\n"
    assert b"supervisor: streams finish, within 1000 s; a second signal ends them" in log


def test_the_second_signal_ends_the_streams_first(tmp_path: Path) -> None:
    with drained(tmp_path, seconds=1000) as process:
        process.send_signal(signal.SIGTERM)
        wait_for((tmp_path / "drain").exists)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: (tmp_path / "drain").read_text() == "ending\n")
        assert not (tmp_path / "ended").exists()
        (tmp_path / "idle").touch()
        process.communicate(timeout=30)
    assert process.returncode == 0
    assert (tmp_path / "ended").read_text() == "ended\n"


def test_a_drain_of_no_time_ends_the_streams_at_once(tmp_path: Path) -> None:
    with drained(tmp_path, seconds=0) as process:
        process.terminate()
        wait_for(lambda: (tmp_path / "drain").exists() and (tmp_path / "drain").read_text() == "ending\n")
        (tmp_path / "idle").touch()
        process.communicate(timeout=30)
    assert process.returncode == 0


def told(tmp_path: Path, body: str, *more: str) -> Supervisor:
    """A supervisor of a server that runs `body` and closes its port by a file `closed`."""
    ready, closed = tmp_path / "ready", tmp_path / "closed"
    drain = Drain(tmp_path / "drain", "http://localhost:9/")
    command = server(tmp_path, f"touch {ready}; {body}", *more)
    return Supervisor(
        command, inherited, ready.exists, HASTY, drain=drain, exit_seconds=0.1, listens=lambda: not closed.exists()
    )


def test_a_server_that_was_told_to_end_is_not_restarted(tmp_path: Path) -> None:
    """Newer Triton ends with exit code 1 if a stream is open."""
    ended = "until grep -q ending drain 2>/dev/null; do sleep 0.01; done; exit 1"
    assert told(tmp_path, f"sleep 1; touch closed; {ended}", "exit 3").run() == 1
    assert starts(tmp_path) == 1


def test_a_server_that_was_told_to_end_and_hangs_is_killed(tmp_path: Path) -> None:
    assert told(tmp_path, "sleep 1; touch closed; exec sleep 1000", "exit 3").run() == 0
    assert starts(tmp_path) == 1


def test_a_server_that_closes_its_port_as_it_dies_is_restarted(tmp_path: Path) -> None:
    dying = "until grep -q ending drain 2>/dev/null; do sleep 0.01; done; kill -KILL $$"
    supervisor = told(tmp_path, f"sleep 1; touch closed; {dying}", "rm closed; exit 0")
    supervisor.exit_seconds = 1000
    assert supervisor.run() == 0
    assert starts(tmp_path) == 2


def test_a_server_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """Triton 2.51 hangs while a client holds a gRPC stream open."""
    command = server(tmp_path, "trap '' TERM; touch ready; while :; do sleep 0.01; done")

    def is_ready() -> bool:
        if (tmp_path / "ready").exists() and not supervisor._stopping.is_set():
            supervisor.stop(signal.SIGTERM)
        return False

    supervisor = Supervisor(command, inherited, is_ready, HASTY, exit_seconds=0.1)
    assert supervisor.run() == 128 + signal.SIGKILL


def test_a_signal_after_the_end_was_ordered_kills_the_server(tmp_path: Path) -> None:
    command = server(tmp_path, "trap 'touch told' TERM; touch ready; while :; do sleep 0.01; done")

    def is_ready() -> bool:
        if (tmp_path / "told").exists() or ((tmp_path / "ready").exists() and not supervisor._stopping.is_set()):
            supervisor.stop(signal.SIGTERM)
        return False

    supervisor = Supervisor(command, inherited, is_ready, HASTY, exit_seconds=1000)
    assert supervisor.run() == 128 + signal.SIGKILL


def test_a_server_starts_without_the_drain_of_the_one_before(tmp_path: Path) -> None:
    one = Drain(tmp_path / "drain", "http://localhost:9/")
    one.begin()
    command = server(tmp_path, f"[ -e {one.file} ] && exit 3; exit 0")
    assert Supervisor(command, inherited, lambda: False, HASTY, drain=one).run() == 0


def test_a_killed_launcher_takes_its_server_along() -> None:
    """Even a server that waits for open streams after any signal."""
    body = "trap '' TERM; echo $$; while :; do sleep 0.01; done"
    program = (
        "import os\nfrom contextlib import nullcontext\nfrom scripts.server.supervisor import supervise\n"
        f"supervise(['sh', '-c', {body!r}], lambda: nullcontext(os.environ))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        server = psutil.Process(int(launcher.stdout.readline()))
        launcher.kill()
        server.wait(30)


def test_kills_orphans_of_a_dead_server(tmp_path: Path) -> None:
    # Ignores SIGTERM, like a stub that waits for a lock.
    orphan = f"(trap '' TERM; exec sleep 1000) & echo $! >{tmp_path}/orphan; kill -9 $$"
    command = server(tmp_path, orphan, "exit 0")
    program = (
        "import os, sys\nfrom contextlib import nullcontext\nfrom scripts.server import supervisor\n"
        "supervisor.ORPHAN_SECONDS = 0.1\n"
        f"sys.exit(supervisor.supervise({command!r}, lambda: nullcontext(os.environ)))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
    assert starts(tmp_path) == 2
    assert not psutil.pid_exists(int((tmp_path / "orphan").read_text()))
