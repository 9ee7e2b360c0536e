"""The examples of docs/gateway.md run as they are, but for the address."""

import re
import subprocess
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.serving import ROOT
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer

# The info string selects how a block runs: `base` requires a Base checkpoint; install, server and gpu are not run.
BLOCK = re.compile(r"^```(bash|python) ?(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall((ROOT / "docs" / "gateway.md").read_text())
ADDRESS = "localhost:8080"
RUN_SECONDS = 60


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with StubServer(frames=3) as stub, RunningGateway(stub.url) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def base() -> Iterator[RunningGateway]:
    with StubServer(frames=3, voices={}) as stub, RunningGateway(stub.url) as gateway:
        yield gateway


def blocks(language: str, kinds: tuple[str, ...]) -> list[str]:
    return [text for name, kind, text in BLOCKS if name == language and kind in kinds]


def run(command: str, gateway: RunningGateway, folder: Path) -> str:
    shell = ["bash", "-ec", "set -o pipefail\n" + command.replace(ADDRESS, gateway.address)]
    done = subprocess.run(shell, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("command", blocks("bash", ("",)))
def test_shell_commands(command: str, gateway: RunningGateway, tmp_path: Path) -> None:
    printed = run(command, gateway, tmp_path)
    assert printed.strip() or (tmp_path / "hello.mp3").stat().st_size > 500


@pytest.mark.parametrize("command", blocks("bash", ("base",)))
def test_shell_commands_of_a_base_checkpoint(command: str, base: RunningGateway, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "anna.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(0).integers(-3000, 3000, 16_000, np.int16).tobytes())
    assert run(command, base, tmp_path).count('"anna"') >= 3


@pytest.mark.parametrize("example", blocks("python", ("", "websocket")))
def test_python_examples(
    example: str, gateway: RunningGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(example.replace(ADDRESS, gateway.address), "docs/gateway.md", "exec"), {})
    [written] = tmp_path.iterdir()
    assert written.stat().st_size > 500


def test_every_kind_of_block_is_known() -> None:
    assert {kind for _, kind, _ in BLOCKS} == {"", "base", "gpu", "install", "server", "websocket"}
