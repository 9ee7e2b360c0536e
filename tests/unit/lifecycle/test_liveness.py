"""Detection of a codec that keeps failing, and of calls without an answer."""

import threading

import numpy as np
import pytest

from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.lifecycle.liveness import CallWatch, CountedCodec
from qwen3_tts_engine.request import RequestError, Unavailable
from tests.fakes.scripted import ScriptedCodec

NONE = np.empty(0)
CHUNKS = Chunks([], np.empty(0, int), np.zeros((1, 2, 16), int), NONE, NONE, NONE, NONE, NONE)


class Codec:
    def __init__(self, max_failures: int) -> None:
        self.deaths: list[Exception] = []
        self.inner = ScriptedCodec()
        self.counted = CountedCodec(self.inner, max_failures, self.deaths.append)

    def fail(self, error: Exception, times: int) -> None:
        self.inner.fail = error
        for _ in range(times):
            with pytest.raises(type(error)):
                self.counted.decode(CHUNKS)
        self.inner.fail = None


def test_consecutive_failures_are_fatal() -> None:
    codec = Codec(max_failures=3)
    codec.fail(RequestError("no plan"), 2)
    codec.counted.decode(CHUNKS)
    codec.fail(RuntimeError("no plan"), 2)
    assert not codec.deaths, "a successful call resets the count"
    codec.fail(RuntimeError("no plan"), 1)
    assert str(codec.deaths[0]) == "3 codec calls in a row failed (max_codec_failures): no plan"
    codec.fail(RuntimeError("no plan"), 5)
    assert len(codec.deaths) == 1


def test_an_unavailable_codec_is_not_a_failure() -> None:
    codec = Codec(max_failures=1)
    codec.fail(Unavailable("the server ends"), 5)
    assert not codec.deaths


def test_a_call_without_an_answer_is_fatal() -> None:
    died, deaths = threading.Event(), []

    def die(error: Exception) -> None:
        deaths.append(str(error))
        died.set()

    watch = CallWatch()
    watch.begin(0.05, die)
    with watch.call("speaker_encoder"):
        assert died.wait(10)
    assert deaths == ["speaker_encoder has not answered for 0.05 s (call_timeout_seconds)"]
    watch.close()


def test_answered_calls_are_not_fatal() -> None:
    deaths: list[Exception] = []
    watch = CallWatch()
    with watch.call("code2wav"):
        pass
    with pytest.raises(RequestError), watch.call("code2wav"):
        raise RequestError("no")
    watch.begin(1e-3, deaths.append)
    threading.Event().wait(0.05)
    watch.close()
    assert not deaths
