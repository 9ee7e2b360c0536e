"""Other threads wait while the talker's thread works, and no longer than a limit."""

import threading
import time

import pytest

from qwen3_tts_engine.threads import Precedence

WAIT = 10.0


@pytest.fixture
def precedence(monkeypatch: pytest.MonkeyPatch) -> Precedence:
    monkeypatch.setattr(Precedence, "MAX_SECONDS", WAIT)
    return Precedence(applies=True)


def waiting(precedence: Precedence) -> tuple[threading.Thread, threading.Event]:
    passed = threading.Event()
    thread = threading.Thread(target=lambda: (precedence.wait(), passed.set()), daemon=True)
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
