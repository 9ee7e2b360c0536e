"""A fine-tuned checkpoint with sharded weights and a tokenizer.json, from the command line to the real talker."""

import wave
from pathlib import Path

import numpy as np
import pytest

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.errors import ExitCode
from qwen3_tts_engine.checkpoint.checkpoint import TOKENIZER_FILES, Checkpoint
from qwen3_tts_engine.frontend.tokenizer import TextTokenizer
from tests.e2e.serving import serve_speech
from tests.fakes.checkpoints import fine_tune, shard


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    folder = fine_tune(tiny_checkpoint, tmp_path / "checkpoint")
    TextTokenizer(Checkpoint.open(str(folder)), 64)._tokenizer.save(str(folder / "tokenizer.json"))
    for name in TOKENIZER_FILES:
        (folder / name).unlink()
    shard(folder / "model.safetensors", 2)
    return folder


def test_its_speaker_is_listed_and_speaks(
    tiny_code2wav: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_speech(tiny_code2wav, checkpoint, tmp_path / "server") as server:
        url = ("--url", f"localhost:{server.ports.grpc}")
        assert main(["voices", "list", *url]) == ExitCode.OK
        assert capsys.readouterr().out == "MyVoice\n"
        spoken = []
        for speaker, language in (("MyVoice", "english"), ("myvoice", "en-GB")):
            sound = tmp_path / f"{speaker}.wav"
            options = ["--speaker", speaker, "--language", language, "--seed", "3", "--max-frames", "9"]
            assert main(["say", "Hello.", *url, *options, "--output", str(sound)]) == ExitCode.OK
            with wave.open(str(sound)) as file:
                spoken.append(np.frombuffer(file.readframes(file.getnframes()), "<i2"))
        assert len(spoken[0]) > 0
        np.testing.assert_allclose(spoken[0] / 32767, spoken[1] / 32767, atol=1e-3)
        assert main(["say", "Hello.", *url, "--speaker", "vivian"]) == ExitCode.REQUEST
        assert "speaker: 'vivian': unknown: choose one of MyVoice" in capsys.readouterr().err
