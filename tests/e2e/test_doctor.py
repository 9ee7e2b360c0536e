"""The doctor's verdict, by a server that it starts; the codec's proof fails."""

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.serving import repository_with
from tests.e2e.test_codec_proof import DIFFERS, halve_volume


def test_the_doctor_says_what_is_wrong(tiny_checkpoint: Path, tiny_code2wav: Path, tmp_path: Path) -> None:
    repository = repository_with(tiny_code2wav, tmp_path)
    halve_volume(repository)
    command = [sys.executable, "-m", "scripts.server", "doctor", "--model-repository", str(repository)]
    environment = os.environ | {"QWEN3_TTS_CHECKPOINT": str(tiny_checkpoint)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 1
    assert "tiny custom_voice" in done.stdout
    assert DIFFERS in done.stdout
    assert "not ready: tritonserver ended with exit code" in done.stdout
