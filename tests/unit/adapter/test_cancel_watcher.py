"""The cancel watcher polls only live streams, at a bounded rate."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qwen3_tts_engine.metrics import Recorder
from qwen3_tts_engine.request import Cancelled, InvalidRequest

WAIT = 10.0


ERROR = SimpleNamespace(INVALID_ARG=1, CANCELLED=2)
UTILITIES = SimpleNamespace(
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    TritonError=type("TritonError", (), {"__init__": lambda self, *given: None, **vars(ERROR)}),
    InferenceResponse=lambda *outputs, error=None: error,
    Tensor=lambda name, values: values,
)


class Sender:
    """A response sender that records when it is polled; Triton crashes if it is polled after FINAL."""

    def __init__(self) -> None:
        self.polled: list[float] = []
        self.messages = 0
        self.cancelled = self.ended = False

    def is_cancelled(self) -> bool:
        assert not self.ended
        self.polled.append(time.monotonic())
        return self.cancelled

    def send(self, *response: object, flags: int = 0) -> None:
        self.messages += 1
        self.ended |= bool(flags)


class Watched:
    def __init__(self, requests: Any, responses: Any) -> None:
        self._accept = requests.accept
        self.responses = responses
        self.cancelled_keys: list[str] = []
        self.rounds = threading.Semaphore(0)
        self.watcher = self._counting(responses.CancelWatcher)(self.cancelled_keys.append)

    def _counting(self, kind: Any) -> Any:
        class Counting(kind):  # type: ignore[misc]
            def _end_due(watcher, now: float) -> None:  # noqa: N805 - `self` counts
                super()._end_due(now)
                self.rounds.release()

        return Counting

    def accept(self, sender: Sender, take: Callable[[Any], None]) -> None:
        request = SimpleNamespace(
            get_response_sender=lambda: sender, inputs=list, correlation_id=lambda: 0, flags=lambda: 0
        )

        host = SimpleNamespace(accept=lambda fields, sink, position: take(sink))
        self._accept(request, host, self.watcher, Recorder())

    def wait_rounds(self, times: int) -> None:
        """Waits for this many rounds of the watcher."""
        for _ in range(times):
            assert self.rounds.acquire(timeout=WAIT)


@pytest.fixture
def watched(adapter: Callable[..., Any]) -> Iterator[Watched]:
    watched = Watched(adapter("requests", UTILITIES), adapter("responses", UTILITIES))
    yield watched
    watched.watcher.close()


def test_never_polls_a_request_refused_at_once(watched: Watched) -> None:
    refused, live = Sender(), Sender()

    def take(sink: Any) -> None:
        raise InvalidRequest("speaker", "unknown", "one of ryan")

    watched.accept(live, lambda sink: None)
    watched.accept(refused, take)
    watched.wait_rounds(20)
    assert refused.ended
    assert not refused.polled
    assert live.polled


def test_polls_each_of_a_thousand_streams_every_second(watched: Watched) -> None:
    responses = watched.responses
    assert 1000 / responses.CANCEL_CHECKS * responses.CANCEL_PERIOD <= 1.0


def test_polls_at_most_four_streams_in_four_milliseconds(watched: Watched) -> None:
    senders = [Sender() for _ in range(64)]
    for sender in senders:
        watched.accept(sender, lambda sink: None)
    watched.wait_rounds(30)
    polled = sorted(at for sender in senders for at in sender.polled)
    assert len(polled) > 4
    assert min(later - at for at, later in zip(polled, polled[4:], strict=False)) > 0.004 * 0.9


def test_polls_a_stream_once_per_interval_until_it_ends(watched: Watched) -> None:
    sender, sinks = Sender(), list[Any]()
    accepted = time.monotonic()
    watched.accept(sender, sinks.append)
    watched.wait_rounds(50)
    sinks[0].finish(None)
    assert len(sender.polled) > 2
    # The average, because on a busy machine one poll may be late and the next on time.
    assert (sender.polled[-1] - accepted) / len(sender.polled) > watched.responses.CANCEL_INTERVAL * 0.9


def test_notices_a_disconnect_and_sends_final_after_the_settle_time(watched: Watched) -> None:
    sender, sinks = Sender(), list[Any]()
    watched.accept(sender, sinks.append)
    sender.cancelled = True
    watched.wait_rounds(50)
    assert sinks[0].key in watched.cancelled_keys
    cancelled = time.monotonic()
    sinks[0].finish(Cancelled("cancelled by the client"))
    while not sender.ended:
        watched.wait_rounds(1)
    assert time.monotonic() - cancelled >= watched.responses.CANCEL_SETTLE


def test_a_final_is_due_a_quarter_of_a_second_after_a_cancel(watched: Watched) -> None:
    watched.watcher.close()
    earliest = time.monotonic()
    watched.watcher.end_later(lambda: None)
    [(due, _)] = watched.watcher._ends
    assert earliest + 0.25 <= due <= time.monotonic() + 0.25


def test_delays_final_of_a_stream_that_ends_while_its_client_disconnects(watched: Watched) -> None:
    sender, sinks = Sender(), list[Any]()
    watched.accept(sender, sinks.append)
    sinks[0].send(b"audio")
    sender.cancelled = True
    sinks[0].finish(None)
    assert not sender.ended
    watched.watcher.close()
    assert sender.ended


def test_voices_and_final_are_one_message(watched: Watched) -> None:
    """As two, Triton crashes if the client disconnects between them."""
    sender, sinks = Sender(), list[Any]()
    watched.accept(sender, sinks.append)
    sinks[0].reply(["{}"])
    assert sender.ended
    assert sender.messages == 1


def test_close_sends_every_pending_final(watched: Watched) -> None:
    sender, sinks = Sender(), list[Any]()
    watched.accept(sender, sinks.append)
    sinks[0].finish(Cancelled("cancelled by the client"))
    watched.watcher.close()
    assert sender.ended


def test_counts_requests_until_their_final_is_sent(watched: Watched) -> None:
    """A drain waits for them, and Triton must not end while the end of a cancelled one is due."""
    ended, cancelled, sinks = Sender(), Sender(), list[Any]()
    watched.accept(ended, sinks.append)
    watched.accept(cancelled, sinks.append)
    assert watched.watcher.open_requests() == 2
    sinks[0].finish(None)
    assert watched.watcher.open_requests() == 1
    sinks[1].finish(Cancelled("cancelled by the client"))
    assert watched.watcher.open_requests() == 1
    while not cancelled.ended:
        watched.wait_rounds(1)
    assert watched.watcher.open_requests() == 0
