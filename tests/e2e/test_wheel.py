"""Installs the client's wheel into an empty environment and runs `qwen3-tts say`."""

import subprocess
import sys
import venv
import wave
from pathlib import Path

import pytest

from tests.fakes.stub_server import StubServer

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_wheel_contains_only_the_client_and_runs_say(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    [wheel] = tmp_path.glob("*.whl")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    constraints = ["--constraint", str(ROOT / "scripts" / "constraints.txt")]
    subprocess.run([environment / "bin" / "pip", "install", "--quiet", *constraints, wheel], check=True)
    packages = {path.name for path in environment.glob("lib/*/site-packages/*")}
    assert "qwen3_tts_client" in packages
    assert list(environment.glob("lib/*/site-packages/qwen3_tts_gateway/page/index.html"))
    assert not packages & {"client", "export", "scripts", "qwen3_tts_engine", "code2wav_step"}
    sound = tmp_path / "hello.wav"
    with StubServer(frames=5) as server:
        client = str(environment / "bin" / "qwen3-tts")
        command = [client, "say", "--url", server.url, "Hello.", "--output", str(sound)]
        subprocess.run(command, check=True, cwd=tmp_path)
    with wave.open(str(sound)) as file:
        assert file.getnframes() == 5 * 1920
