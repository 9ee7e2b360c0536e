"""The shell commands of README.md run in order, and quickstart serves a page.

One file, since both use the default ports and the checkout's model repository.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from scripts.server.ports import Ports
from scripts.server.tritonserver import is_ready
from tests.e2e.serving import ROOT, eventually

# The info string selects how a block runs: `bash server` runs in the background of the following blocks; `bash gpu`
# requires a GPU and is skipped.
BLOCK = re.compile(r"^```bash ?(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
THIS_RUN = "scripts/test.sh\n"
DEFAULT_PORTS = (Ports.grpc, Ports.http, Ports.metrics)
RUN_SECONDS = 280
START_SECONDS = 120
OPEN = re.compile(r"Open (http://localhost:\d+) ")
STOP_SECONDS = 60


def blocks() -> list[tuple[str, str]]:
    return [(kind, command) for kind, command in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_readme_commands_succeed_in_order(tmp_path: Path) -> None:
    # `bench` does not overwrite a record, and an earlier run may have left one.
    shutil.rmtree(ROOT / "artifacts" / "first", ignore_errors=True)
    commands = [(kind, command) for kind, command in blocks() if kind != "gpu" and command != THIS_RUN]
    assert [command for _, command in commands].index("scripts/quickstart.sh\n") == 0
    assert all(port_is_free(port) for port in DEFAULT_PORTS), "a default port is already in use"
    before = [command for kind, command in commands[: index_of_kind(commands, "server")]]
    for command in before:
        run(command)
    assert all(port_is_free(port) for port in DEFAULT_PORTS), "a command left a server running"
    [server] = [command for kind, command in commands if kind == "server"]
    with background(server, tmp_path / "server.log"):
        for _, command in commands[len(before) + 1 :]:
            run(command)
    assert (ROOT / "hello.wav").stat().st_size > 1920 * 2, "one frame of sound at most"
    (ROOT / "hello.wav").unlink()


def test_quickstart_serves_a_page_until_it_is_interrupted(tmp_path: Path) -> None:
    assert all(port_is_free(port) for port in DEFAULT_PORTS), "a default port is already in use"
    port, output = Ports.free().http, tmp_path / "hello.wav"
    command = ["scripts/quickstart.sh", "--serve", "--port", str(port), "--output", str(output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            url = next(found[1] for line in process.stdout if (found := OPEN.search(line)))
            assert url == f"http://localhost:{port}"
            assert "<title>Qwen3-TTS</title>" in httpx.get(url).text
            spoken = httpx.post(f"{url}/v1/audio/speech", json={"input": "Hello.", "max_new_tokens": 5}, timeout=30)
            assert spoken.status_code == 200
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_SECONDS)
    assert process.returncode == 0
    assert output.stat().st_size > 1920 * 2
    assert all(port_is_free(used) for used in (*DEFAULT_PORTS, port))


def test_quickstart_and_test_commands_are_in_the_first_30_lines() -> None:
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    assert {"scripts/quickstart.sh", "scripts/test.sh"} <= set(first_screen)


def index_of_kind(commands: list[tuple[str, str]], kind: str) -> int:
    return [found for found, _ in commands].index(kind)


def run(command: str) -> None:
    done = subprocess.run(["bash", "-ec", command], cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.stdout.strip() or "--output" in command, f"{command} printed nothing"


@contextmanager
def background(command: str, log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-ec", command], cwd=ROOT, stdout=file, stderr=file, start_new_session=True, env=os.environ
        )
        try:
            eventually(lambda: process.poll() is not None or is_ready(Ports(), "qwen3_tts"), START_SECONDS)
            assert process.poll() is None, log.read_text()[-2000:]
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) != 0
