"""Other threads wait while the talker's thread works, and no longer than a limit."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.core.batches import Chunks, Frames
from qwen3_tts_engine.threads import Precedence
from tests.unit.engine.test_engine import WAIT, Harness


@pytest.fixture
def precedence(monkeypatch: pytest.MonkeyPatch) -> Precedence:
    monkeypatch.setattr(Precedence, "MAX_SECONDS", WAIT)
    return Precedence(applies=True)


def waiting(precedence: Precedence) -> tuple[threading.Thread, threading.Event]:
    passed = threading.Event()

    def run() -> None:
        precedence.wait()
        passed.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, passed


def test_others_wait_until_it_rests(precedence: Precedence) -> None:
    precedence.wait()
    with precedence.resting():
        precedence.wait()
    thread, passed = waiting(precedence)
    assert not passed.wait(0.05)
    with precedence.resting():
        assert passed.wait(WAIT / 2)
    thread.join()


def test_others_wait_no_longer_than_the_limit(precedence: Precedence, monkeypatch: pytest.MonkeyPatch) -> None:
    with precedence.resting():
        pass
    monkeypatch.setattr(Precedence, "MAX_SECONDS", 0.01)
    started = time.monotonic()
    precedence.wait()
    assert time.monotonic() - started >= 0.01


def test_it_may_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Precedence, "MAX_SECONDS", 1000.0)
    precedence = Precedence(applies=False)
    with precedence.resting():
        pass
    precedence.wait()


def test_what_the_codec_decoded_waits_for_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Precedence, "MAX_SECONDS", WAIT)
    harness = Harness(lookahead=1)
    decode, launch, put = harness.codec.decode, harness.runner.launch, harness.engine.delivery.put
    decoding, launching, go_on, sent = (threading.Event() for _ in range(4))

    def decode_until_a_launch(chunks: Chunks) -> Any:
        if threading.current_thread().name.startswith("codec"):
            decoding.set()
            assert launching.wait(WAIT)
        return decode(chunks)

    def launch_during_a_call(slots: np.ndarray) -> Frames:
        if decoding.is_set() and not launching.is_set():
            launching.set()
            assert go_on.wait(WAIT)
        return launch(slots)

    def noting(*chunks: Any) -> None:
        if launching.is_set():
            sent.set()
        put(*chunks)

    monkeypatch.setattr(harness.codec, "decode", decode_until_a_launch)
    monkeypatch.setattr(harness.runner, "launch", launch_during_a_call)
    monkeypatch.setattr(harness.engine.delivery, "put", noting)
    harness.engine.start()
    listener = harness.speak(frames=200)
    assert launching.wait(WAIT)
    assert not sent.wait(0.1)
    # The last chunks are followed by no launch.
    monkeypatch.setattr(Precedence, "MAX_SECONDS", 0.0)
    go_on.set()
    assert listener.ended.wait(WAIT)
    assert sent.is_set()
    harness.engine.close()
