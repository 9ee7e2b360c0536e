import os
import sys
from pathlib import Path

import numpy as np
import pytest

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.sink import FadingSink, open_sink

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


class Recorder:
    def __init__(self) -> None:
        self.pcm: list[np.ndarray] = []
        self.closed = False

    def write(self, pcm: np.ndarray) -> None:
        self.pcm.append(pcm)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("lengths", [[], [50], [1920, 1920], [60, 60, 60, 7]])
@pytest.mark.parametrize("is_complete", [True, False])
def test_only_a_cancelled_utterance_fades_out(lengths: list[int], is_complete: bool) -> None:
    recorder = Recorder()
    sink = FadingSink(recorder, 24_000)
    for length in lengths:
        sink.write(np.full(length, 1000, np.int16))
    if is_complete:
        sink.finish()
    sink.close()
    assert recorder.closed
    pcm = np.concatenate([np.empty(0, np.int16), *recorder.pcm])
    assert len(pcm) == sum(lengths)
    faded = pcm[:0] if is_complete else pcm[-120:]
    assert (pcm[: len(pcm) - len(faded)] == 1000).all()
    assert (np.diff(faded) <= 0).all()
    assert not len(faded) or faded[-1] == 0
