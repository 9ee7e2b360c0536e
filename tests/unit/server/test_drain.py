"""The steps of a drain, and when it is over."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen3_tts_engine.lifecycle import draining
from qwen3_tts_engine.metrics import DRAINING, OPEN
from scripts.server import drain
from scripts.server.drain import END_SECONDS, ENDING, FILE_VARIABLE, REFUSING, UNREADY, Drain, is_idle
from tests.fakes.page_server import PageServer, serving

NOWHERE = "http://localhost:9/metrics"
LONG = 1000.0


def metrics(*models: tuple[float, float]) -> str:
    """A page of metrics, with draining and open requests of each model."""
    lines = ["# HELP nv_inference_count Number of inferences", 'nv_inference_count{model="code2wav"} 5.0']
    for number, (is_draining, open_requests) in enumerate(models):
        labels = f'{{model="m{number}",version="1"}}'
        lines += [f"{DRAINING.name}{labels} {is_draining}", f"{OPEN.name}{labels} {open_requests}"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([(1.0, 0.0)], True),
        ([(1.0, 2.0)], False),
        ([(0.0, 0.0)], False),
        ([(1.0, 0.0), (1.0, 0.0)], True),
        ([(1.0, 0.0), (1.0, 1.0)], False),
        ([(1.0, 0.0), (0.0, 0.0)], False),
        ([], False),
    ],
)
def test_a_server_is_idle_once_every_model_drains_and_has_no_request(
    models: list[tuple[float, float]], expected: bool
) -> None:
    assert is_idle(metrics(*models)) is expected


def test_names_are_those_of_the_engine() -> None:
    assert (OPEN.name, DRAINING.name) == (drain.OPEN, drain.DRAINING)
    assert (draining.REFUSING, draining.ENDING) == (drain.REFUSING, drain.ENDING)


@pytest.fixture
def server() -> Iterator[PageServer]:
    with serving() as server:
        yield server


def test_is_unready_before_it_refuses(tmp_path: Path) -> None:
    one = Drain(tmp_path / "drain", NOWHERE, LONG, notice_seconds=LONG)
    one.begin()
    assert not one.is_over()
    assert one.file.read_text() == f"{UNREADY}\n"
    one.notice_seconds = 0
    assert not one.is_over()
    assert one.file.read_text() == f"{REFUSING}\n"


def test_is_over_when_no_stream_is_open(tmp_path: Path, server: PageServer) -> None:
    one = Drain(tmp_path / "drain", server.url, LONG, notice_seconds=0)
    one.begin()
    # Not while it is only unready: requests still arrive.
    server.text = metrics((1.0, 0.0))
    assert not one.is_over()
    server.text = metrics((1.0, 3.0))
    assert not one.is_over()
    server.text = metrics((1.0, 0.0))
    assert one.is_over()


def test_open_streams_end_at_the_limit(tmp_path: Path, server: PageServer) -> None:
    server.text = metrics((1.0, 3.0))
    one = Drain(tmp_path / "drain", server.url, LONG, notice_seconds=0)
    one.begin()
    assert [one.is_over(), one.is_over()] == [False, False]
    os.utime(one.file, (time.time() - LONG,) * 2)
    assert [one.is_over(), one.is_over()] == [False, False]
    assert one.file.read_text() == f"{ENDING}\n"
    os.utime(one.file, (time.time() - END_SECONDS,) * 2)
    assert one.is_over(), "a stream that does not end"


def test_is_over_when_told_streams_have_ended(tmp_path: Path, server: PageServer) -> None:
    server.text = metrics((1.0, 3.0))
    one = Drain(tmp_path / "drain", server.url, seconds=0)
    one.begin()
    assert not one.is_over()
    assert one.is_ending()
    server.text = metrics((1.0, 0.0))
    assert one.is_over()


def test_a_server_without_metrics_has_the_whole_time(tmp_path: Path) -> None:
    one = Drain(tmp_path / "drain", NOWHERE, LONG, notice_seconds=0)
    one.begin()
    assert [one.is_over() for _ in range(3)] == [False] * 3


def test_a_second_process_continues_a_drain(tmp_path: Path, server: PageServer) -> None:
    """The launcher, after a preStop hook."""
    server.text = metrics((1.0, 0.0))
    first = Drain(tmp_path / "drain", server.url, LONG, notice_seconds=0)
    first.begin()
    assert not first.is_over()
    second = Drain(first.file, server.url, LONG, notice_seconds=LONG)
    second.begin()
    assert second.is_over()


def test_is_over_when_it_is_cancelled(tmp_path: Path) -> None:
    one = Drain(tmp_path / "drain", NOWHERE, LONG, LONG)
    one.begin()
    one.clear()
    assert one.is_over()


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "scripts.server", "drain", *map(str, arguments)]
    known = {name: value for name, value in os.environ.items() if name != FILE_VARIABLE}
    return subprocess.run(program, env=known | environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_drains_the_server_of_its_ports(tmp_path: Path, server: PageServer) -> None:
    server.text = metrics((1.0, 0.0))
    port, file = server.server_port, tmp_path / "drain"
    done = command("--http-port", port, "--metrics-port", port, "--notice-seconds", 0, **{FILE_VARIABLE: str(file)})
    assert (done.returncode, done.stderr) == (0, "drain: unready, streams finish\n")
    assert file.read_text() == f"{REFUSING}\n"


def test_the_command_leaves_a_server_that_is_not_ready(tmp_path: Path) -> None:
    done = command("--file", tmp_path / "drain", "--http-port", 9)
    assert (done.returncode, done.stderr) == (0, "drain: the server is not ready, so it has no streams\n")
    assert not (tmp_path / "drain").exists()


def test_the_command_requires_a_file() -> None:
    done = command()
    assert done.returncode == 2
    assert "Missing option '--file'" in done.stderr
    assert FILE_VARIABLE in done.stderr
