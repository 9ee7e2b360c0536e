"""A server that dies is started again; one that never served is not for ever; a signal is handed on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.embedded.supervisor import Patience, Supervisor

HASTY = Patience(max_failed_starts=3, pause_seconds=0.001)


def server(tmp_path: Path, *lives: str) -> list[str]:
    """A command that does the next of `lives`, in the shell's language, each time it is started."""
    for number, life in enumerate(lives):
        (tmp_path / f"life{number}").write_text(life)
    (tmp_path / "count").write_text("0")
    script = f'cd {tmp_path}; n=$(cat count); echo $((n + 1)) >count; . "./life$n"'
    return ["sh", "-c", script]


def starts(tmp_path: Path) -> int:
    return int((tmp_path / "count").read_text())


def test_a_server_that_never_became_ready_is_given_up(tmp_path: Path) -> None:
    supervisor = Supervisor(server(tmp_path, *["exit 3"] * 9), os.environ, lambda: False, HASTY)
    assert supervisor.run() == 3
    assert starts(tmp_path) == HASTY.max_failed_starts


def test_a_server_that_served_is_started_for_as_often_as_it_takes(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    # Lives until it has been seen to be ready.
    life = "touch ready; while [ -e ready ]; do sleep 0.01; done; kill -9 $$"
    command = server(tmp_path, *[life] * 6, "exit 0")

    def is_ready() -> bool:
        if ready.exists():
            ready.unlink()
            return True
        return False

    assert Supervisor(command, os.environ, is_ready, HASTY).run() == 0
    assert starts(tmp_path) == 7


def test_a_server_that_cannot_serve_is_given_up_though_it_was_ready(tmp_path: Path) -> None:
    command = server(tmp_path, *["sleep 1; kill -USR1 $$"] * 9)
    assert Supervisor(command, os.environ, lambda: True, HASTY).run() == 128 + signal.SIGUSR1
    assert starts(tmp_path) == HASTY.max_failed_starts


def test_pauses_grow() -> None:
    assert [Patience().pause(n) for n in range(4)] == [1, 2, 4, 8]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handed_on_and_the_servers_code_comes_back(number: signal.Signals) -> None:
    life = f"trap 'exit 7' {number.name[3:]}; echo ready; while :; do sleep 0.01; done"
    program = (
        "import os, sys\nfrom scripts.embedded.supervisor import supervise\n"
        f'sys.exit(supervise(["sh", "-c", {life!r}, "--http-port=1"], os.environ))'
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(30) == 7


def test_what_a_dead_server_left_behind_is_killed(tmp_path: Path) -> None:
    # Deaf to whatever may be asked of it, as a stub that waits for a lock.
    orphan = f"(trap '' TERM; exec sleep 1000) & echo $! >{tmp_path}/orphan; kill -9 $$"
    command = server(tmp_path, orphan, "exit 0")
    program = (
        "import os, sys\nfrom scripts.embedded import supervisor\nsupervisor.ORPHAN_SECONDS = 0.1\n"
        f"sys.exit(supervisor.supervise({command!r}, os.environ))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
    assert starts(tmp_path) == 2
    assert not psutil.pid_exists(int((tmp_path / "orphan").read_text()))
