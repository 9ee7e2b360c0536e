"""PyTorch's current device is per thread: each thread that uses the device sets it first."""

import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from qwen3_tts_engine.codec.proof import CodecProofError
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.lifecycle.opening import Opening
from qwen3_tts_engine.startup import build_engine, on_thread
from qwen3_tts_engine.voices.record import Origin
from qwen3_tts_engine.voices.service import Voices
from qwen3_tts_engine.voices.sqlite_store import SqliteStore
from tests.fakes.scripted import NUM_CODEBOOKS, ScriptedCodec, ScriptedRunner

WAIT = 10.0


class Started:
    """Records the names of calling threads; `all` is set once there are `count`."""

    def __init__(self, count: int) -> None:
        self.names: set[str] = set()
        self.all = threading.Event()
        self._count = count

    def __call__(self) -> None:
        self.names.add(threading.current_thread().name)
        if len(self.names) == self._count:
            self.all.set()


@pytest.mark.parametrize(("take_turns", "loops"), [("off", {"talker", "codec 0", "codec 1"}), ("on", {"talker"})])
def test_engine_threads_set_the_device(take_turns: str, loops: set[str]) -> None:
    started = Started(len(loops))
    config = EngineConfig.model_validate({"checkpoint": "any", "max_streams": 2, "take_turns": take_turns})
    engine = build_engine(config, NUM_CODEBOOKS, ScriptedRunner(2), ScriptedCodec(), started)
    engine.start()
    assert started.all.wait(WAIT)
    engine.close()
    assert started.names == loops


def test_voice_threads_set_the_device(tmp_path: Path) -> None:
    started = Started(4)
    store, config = SqliteStore(tmp_path, 1, 1), EngineConfig(checkpoint="any")
    voices = Voices(MagicMock(), store, Origin(1, "", ""), config, MagicMock(), 1, started)
    assert started.all.wait(WAIT)
    voices.close()
    assert started.names == {"registry", "voice operations", "recordings", "encoders"}


def test_opening_thread_sets_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(1)
    opening = Opening(MagicMock(), Gate(1), EngineConfig(checkpoint="any"), started)
    monkeypatch.setattr(opening, "_pause", MagicMock(side_effect=CodecProofError("enough")))
    opening.begin(MagicMock(), MagicMock(), None)
    assert started.all.wait(WAIT)
    opening.close()
    assert started.names == {"opening"}


def test_sets_the_configured_device_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = MagicMock()
    monkeypatch.setattr(torch.cuda, "set_device", chosen)
    on_thread(torch.device("cpu"))()
    chosen.assert_not_called()
    on_thread(torch.device("cuda", 1))()
    chosen.assert_called_once_with(torch.device("cuda", 1))
