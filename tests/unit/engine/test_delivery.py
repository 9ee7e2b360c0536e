"""The order in which audio and ends are sent."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine import metrics
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.core.streams import FinishReason, Stream, Summary
from qwen3_tts_engine.engine.delivery import Delivery
from qwen3_tts_engine.interfaces import Decoded
from qwen3_tts_engine.request import RequestError
from tests.fakes.scripted import NUM_CODEBOOKS, make_stream

Sent = list[tuple[str, int | str]]


class Line:
    """A delivery that has not begun to send, and what its listeners receive."""

    def __init__(self) -> None:
        self.sent: Sent = []
        self.failed: list[str] = []
        # A state for which each stream has ended already.
        state: Any = SimpleNamespace(end=lambda stream: self.failed.append(stream.key))
        self.recorder = metrics.Recorder(dict)
        self.delivery = Delivery(state, self.recorder)

    def stream(self, key: str) -> Stream:
        stream = make_stream(key, Sink(key, self.sent))
        stream.reason = FinishReason.STOP
        return stream

    def decode(
        self, streams: Sequence[Stream], value: int, ended: Sequence[Stream] = (), failed: Sequence[Stream] = ()
    ) -> None:
        """A codec call of one sample of this value for each stream."""
        count = len(streams)
        zeros = np.zeros(count)
        codes = np.zeros((count, 1, NUM_CODEBOOKS), np.int32)
        chunks = Chunks(list(streams), zeros, codes, zeros, np.ones(count), zeros, zeros, zeros)
        audio = [np.full(1, value, np.int16)] * count
        errors = {row: RequestError("injected") for row, stream in enumerate(streams) if stream in failed}
        self.delivery.put(Decoded(chunks, np.zeros((count, 0), np.int16), errors, 0.0, 0.0), audio)
        self.delivery.end(ended)

    def run(self) -> Sent:
        self.delivery.flush()
        return self.sent


class Sink:
    def __init__(self, key: str, sent: Sent) -> None:
        self._key, self._sent = key, sent

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        self._sent.append((self._key, int(pcm[0])))

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None:
        self._sent.append((self._key, "error" if error else "end"))


@pytest.fixture
def line() -> Line:
    return Line()


def test_audio_is_sent_in_the_order_of_decoding_and_ends_follow_it(line: Line) -> None:
    ending, other = line.stream("ending"), line.stream("other")
    line.decode([ending, other], 1)
    line.decode([ending, other], 2, ended=[ending])
    line.delivery.end([other])
    chunks: Sent = [("ending", 1), ("other", 1), ("ending", 2), ("other", 2), ("ending", "end"), ("other", "end")]
    assert line.run() == chunks


def test_flush_sends_all_that_is_queued(line: Line) -> None:
    line.decode([line.stream(str(i)) for i in range(5)], 1)
    assert len(line.run()) == 5


def test_failed_chunk_fails_its_stream_only(line: Line) -> None:
    bad, good = line.stream("bad"), line.stream("good")
    line.decode([bad, good], 1, failed=[bad])
    assert line.run() == [("good", 1)]
    assert line.failed == ["bad"]


def test_a_stream_whose_last_audio_failed_ends_with_the_error(line: Line) -> None:
    bad, good = line.stream("bad"), line.stream("good")
    line.decode([bad, good], 1, ended=[bad, good], failed=[bad])
    assert line.run() == [("good", 1), ("bad", "error"), ("good", "end")]


def test_all_is_sent_in_one_context() -> None:
    """The context writes the messages of a call together."""
    line, entered = Line(), list[Sent]()

    @contextmanager
    def sending() -> Iterator[None]:
        entered.append(list(line.sent))
        yield
        entered.append(list(line.sent))

    line.delivery._sending = sending
    line.decode([line.stream(str(i)) for i in range(3)], 1)
    assert entered == []
    line.run()
    assert [len(sent) for sent in entered] == [0, 3]


def test_each_chunk_is_observed(line: Line) -> None:
    line.decode([line.stream("a"), line.stream("b")], 1)
    line.run()
    assert len(line.delivery._recorder.take().observed[metrics.SEND.name]) == 2
