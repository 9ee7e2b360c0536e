import os
import sys
from pathlib import Path

import numpy as np
import pytest

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.sink import open_sink

PCM = np.array([1, -2, 3], np.int16)


@pytest.fixture(autouse=True)
def no_sound_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)


def fake_player(folder: Path, name: str) -> None:
    player = folder / name
    player.write_text(f'#!/bin/sh\necho "$@" > {folder}/arguments\ncat > {folder}/input\n')
    player.chmod(0o755)


@pytest.mark.parametrize("name", ["aplay", "paplay"])
def test_writes_raw_pcm_to_the_player_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake_player(tmp_path, name)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    sink = open_sink("-", play=True, sample_rate=24_000)
    sink.write(PCM)
    sink.write(PCM)
    sink.close()
    assert (tmp_path / "input").read_bytes() == 2 * PCM.tobytes()
    assert "24000" in (tmp_path / "arguments").read_text()


def test_error_without_a_player_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(ClientError, match="install aplay, paplay or the Python package sounddevice"):
        open_sink("-", play=True, sample_rate=24_000)
