"""The engine's threads: every stream ends exactly once despite failures, and no thread hangs."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.codec.contract import MAX_CALL_FRAMES
from qwen3_tts_engine.core.batches import Chunks, Frames
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.request import Outcome, RequestError, Unavailable
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, ScriptedCodec, ScriptedRunner, make_stream

WAIT = 10.0


class Harness:
    def __init__(
        self,
        slots: int = 4,
        max_waiting: int = 100,
        lookahead: int = 0,
        load_limit: float = 0,
        refuse: bool = False,
        take_turns: bool = False,
        pages: int = 1000,
        max_silent_frames: int = 0,
        codec: ScriptedCodec | None = None,
        max_call_frames: int = MAX_CALL_FRAMES,
    ) -> None:
        table = SlotTable(slots, 256, NUM_CODEBOOKS)
        self.runner = ScriptedRunner(slots, lookahead=lookahead, page_size=4)
        self.runner.checks_pages = True
        self.codec = codec or ScriptedCodec()
        limits = SchedulerLimits(4, pages, slots, max_waiting, 1000, refuse, max_silent_frames)
        scheduler = Scheduler(table, limits, Capacity(load_limit, 8, batching_is_free=False))
        chunker = Chunker(table, 8, scheduler.capacity.frame_seconds, lambda *_: max_call_frames)
        self.engine = Engine(scheduler, chunker, self.runner, self.codec, take_turns=take_turns)
        self.listeners: list[Listener] = []

    def speak(self, seed: int = 0, frames: int = 8, listener: Listener | None = None) -> Listener:
        listener = listener or Listener()
        key = str(len(self.listeners))
        self.listeners.append(listener)
        self.engine.submit(make_stream(key, listener, seed, frames))
        return listener

    def is_empty(self) -> bool:
        scheduler = self.engine.scheduler
        with self.engine.state.lock:
            scheduler.check_integrity()
            return not scheduler.live and scheduler.slots.num_used == 0 and scheduler.pages.num_used == 0


@pytest.fixture(params=[(0, False), (1, False), (1, True)], ids=["read-at-once", "read-one-tick-late", "in-turn"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    lookahead, take_turns = request.param
    harness = Harness(lookahead=lookahead, take_turns=take_turns)
    harness.engine.start()
    yield harness
    harness.runner.gate.set()
    harness.codec.gate.set()
    harness.engine.close()
    assert not any(thread.is_alive() for thread in harness.engine._threads._threads.values())
    assert not any(listener.late for listener in harness.listeners), "audio was sent after the end"


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.002)


def test_every_stream_gets_its_own_frames_in_order(harness: Harness) -> None:
    listeners = [harness.speak(seed, frames=3 + seed % 40) for seed in range(64)]
    for seed, listener in enumerate(listeners):
        assert listener.ended.wait(WAIT)
        assert listener.signatures() == [(seed, frame) for frame in range(3 + seed % 40)]
        assert (listener.ends, listener.error) == (1, None)
    assert harness.is_empty()


@pytest.mark.parametrize("harness", [(0, False)], indirect=True, ids=["read-at-once"])
def test_the_end_never_overtakes_the_last_chunk(harness: Harness) -> None:
    """The end is sampled while the codec's thread is about to enqueue the last frame."""
    delivery = harness.engine.delivery
    put, end, launch = delivery.put, delivery.end, harness.runner.launch
    enqueuing, ended = threading.Event(), threading.Event()

    def put_slowly(*chunks: Any) -> None:
        enqueuing.set()
        ended.wait(0.3)
        put(*chunks)

    def end_then_go_on(streams: Collection[Stream]) -> None:
        end(streams)
        if streams:
            ended.set()

    def launch_end_after_last_chunk(slots: np.ndarray) -> Frames:
        if harness.runner.launched:
            enqueuing.wait()
        return launch(slots)

    delivery.put, delivery.end = put_slowly, end_then_go_on  # type: ignore[assignment,method-assign]
    harness.runner.launch = launch_end_after_last_chunk  # type: ignore[method-assign]
    harness.runner.lengths[7] = 1
    listener = harness.speak(seed=7)
    assert listener.ended.wait(WAIT)
    harness.engine.close()
    assert (listener.signatures(), listener.error, listener.late) == ([(7, 0)], None, 0)


def test_audio_is_sent_before_its_call_is_accounted_for(harness: Harness) -> None:
    chunker, listener, sent = harness.engine.state.chunker, Listener(), []
    done = chunker.done

    def done_after_audio(*call: Any) -> list[Stream]:
        eventually(lambda: len(listener.pcm) > 0)
        sent.append(len(listener.pcm))
        return done(*call)

    chunker.done = done_after_audio  # type: ignore[assignment,method-assign]
    harness.speak(seed=7, frames=1, listener=listener)
    assert listener.ended.wait(3 * WAIT)
    assert sent == [1]


def test_a_stream_that_ends_after_its_last_chunk_is_not_counted_as_running(harness: Harness) -> None:
    harness.runner.lengths[7] = 1
    listener = harness.speak(seed=7)
    eventually(lambda: len(listener.pcm) == 1)
    assert listener.ended.wait(WAIT)
    assert harness.engine.recorder.take().gauges["qwen3_tts_requests_running"] == 0


def test_streams_share_codec_calls(harness: Harness) -> None:
    harness.runner.gate.clear()
    listeners = [harness.speak(seed) for seed in range(4)]
    harness.runner.gate.set()
    assert all(listener.ended.wait(WAIT) for listener in listeners)
    assert max(rows for rows, _ in harness.codec.calls) > 1


def test_cancel_stops_the_talker_within_a_tick(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, is_cancelled = harness.runner.launch, threading.Event()

    def launch_ten(slots: np.ndarray) -> Frames:
        if harness.runner.launched == 10:
            is_cancelled.wait(WAIT)
        return launch(slots)

    monkeypatch.setattr(harness.runner, "launch", launch_ten)
    listener = harness.speak(frames=256)
    eventually(lambda: len(listener.pcm) > 0)
    harness.engine.cancel("0")
    is_cancelled.set()
    assert listener.ended.wait(WAIT)
    assert isinstance(listener.error, RequestError)
    assert listener.error.outcome is Outcome.CANCELLED
    frames = harness.runner._frame.copy()
    eventually(harness.is_empty)
    assert (harness.runner._frame - frames).max() <= 1 + harness.runner.lookahead


def test_cancel_ends_a_waiting_stream(harness: Harness) -> None:
    harness.runner.gate.clear()
    listeners = [harness.speak() for _ in range(6)]
    harness.engine.cancel("5")
    assert listeners[5].ended.wait(WAIT)
    harness.runner.gate.set()
    assert all(listener.ended.wait(WAIT) for listener in listeners)
    eventually(harness.is_empty)


def test_cancel_during_a_codec_call_keeps_the_slot_until_the_call_ends(harness: Harness) -> None:
    harness.codec.gate.clear()
    listener = harness.speak(frames=4)
    eventually(lambda: bool(harness.engine.scheduler.table.decoding.any()))
    harness.engine.cancel("0")
    assert listener.ended.wait(WAIT)
    assert not harness.is_empty(), "the slot must stay allocated while the codec writes to it"
    harness.codec.gate.set()
    eventually(harness.is_empty)
    assert listener.ends == 1


def test_cancel_ignores_unknown_and_ended_streams(harness: Harness) -> None:
    listener = harness.speak()
    assert listener.ended.wait(WAIT)
    harness.engine.cancel("0")
    harness.engine.cancel("unknown")
    assert listener.ends == 1


@pytest.mark.parametrize("harness", [(0, False), (1, False)], indirect=True, ids=["read-at-once", "read-one-tick-late"])
def test_a_slow_codec_does_not_delay_the_talker_after_the_first_audio(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = harness.codec.decode

    def block_the_second(chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        result = decode(chunks)
        if len(harness.codec.calls) == 1:
            harness.codec.gate.clear()
        return result

    monkeypatch.setattr(harness.codec, "decode", block_the_second)
    listener = harness.speak(frames=200)
    eventually(lambda: bool(harness.engine.scheduler.table.written[0] == 200))
    assert not listener.ends
    harness.codec.gate.set()
    assert listener.ended.wait(WAIT)
    assert listener.signatures() == [(0, frame) for frame in range(200)]


@pytest.mark.parametrize("harness", [(0, False), (1, False)], indirect=True, ids=["read-at-once", "read-one-tick-late"])
def test_a_codec_call_begins_while_the_audio_of_the_last_one_is_delivered(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, delivering, may_go_on = harness.engine.delivery.flush, list[str](), threading.Event()

    def deliver_slowly() -> None:
        if (name := threading.current_thread().name).startswith("codec"):
            delivering.append(name)
            may_go_on.wait(WAIT)
        flush()

    monkeypatch.setattr(harness.engine.delivery, "flush", deliver_slowly)
    listeners = [harness.speak(seed=0, frames=200)]
    eventually(lambda: len(delivering) == 1)
    listeners.append(harness.speak(seed=1, frames=200))
    eventually(lambda: sorted(delivering) == ["codec 0", "codec 1"])
    may_go_on.set()
    for seed, listener in enumerate(listeners):
        assert listener.ended.wait(WAIT)
        assert listener.signatures() == [(seed, frame) for frame in range(200)]


class OverlappingCodec(ScriptedCodec):
    """Until `max_calls` of the codec's threads have been under way at once, each waits for the next one."""

    def __init__(self, max_calls: int) -> None:
        super().__init__(max_calls)
        self.streams: list[set[str]] = []
        self.most = 0
        self._changed = threading.Condition()

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        keys = {stream.key for stream in chunks.streams}
        with self._changed:
            assert not any(keys & others for others in self.streams), "two calls have the same stream"
            self.streams.append(keys)
            if threading.current_thread().name.startswith("codec"):
                self.most = max(self.most, len(self.streams))
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.most == self.max_calls, WAIT)
        answer = super().decode(chunks)
        with self._changed:
            self.streams.remove(keys)
        return answer


@pytest.mark.parametrize("max_calls", [1, 2])
def test_as_many_calls_are_under_way_as_the_codec_takes(max_calls: int) -> None:
    codec = OverlappingCodec(max_calls)
    harness = Harness(slots=8, codec=codec, max_call_frames=4)
    harness.engine.start()
    listeners = [harness.speak(seed, frames=30 + seed) for seed in range(24)]
    for seed, listener in enumerate(listeners):
        assert listener.ended.wait(WAIT)
        assert listener.signatures() == [(seed, frame) for frame in range(30 + seed)]
    harness.engine.close()
    assert codec.most == max_calls
    assert not any(listener.late for listener in listeners)


@pytest.mark.parametrize("harness", [(1, False)], indirect=True, ids=["read-one-tick-late"])
def test_a_lone_stream_is_heard_before_its_second_tick(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, launched = harness.codec.decode, list[int]()

    def record(chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        launched.append(harness.runner.launched)
        return decode(chunks)

    monkeypatch.setattr(harness.codec, "decode", record)
    for _ in range(3):
        eventually(harness.is_empty)
        launched.clear()
        before = harness.runner.launched
        assert harness.speak(frames=20).ended.wait(WAIT)
        assert launched[0] == before + 1


@pytest.mark.parametrize("frames", [1, 100])
def test_a_failed_send_ends_only_its_stream(harness: Harness, frames: int) -> None:
    broken = Listener()
    broken.send_error = OSError("gone")
    harness.speak(frames=frames, listener=broken)
    other = harness.speak(seed=1, frames=30)
    assert broken.ended.wait(WAIT)
    assert other.ended.wait(WAIT)
    assert "gone" in str(broken.error)
    assert broken.ends == 1
    assert (other.error, len(other.signatures())) == (None, 30)
    eventually(harness.is_empty)


def test_a_failed_prefill_ends_only_its_stream(harness: Harness) -> None:
    harness.runner.prefill_failures[7] = MemoryError("out of memory")
    harness.runner.gate.clear()
    first = harness.speak(seed=1)
    failing, other = harness.speak(seed=7), harness.speak(seed=2)
    harness.runner.gate.set()
    assert all(listener.ended.wait(WAIT) for listener in (first, failing, other))
    assert "out of memory" in str(failing.error)
    assert failing.pcm == []
    assert [listener.error for listener in (first, other)] == [None, None]
    eventually(harness.is_empty)


def test_a_failed_codec_call_ends_its_streams_and_the_next_call_succeeds(harness: Harness) -> None:
    harness.codec.fail = RuntimeError("no plan")
    listener = harness.speak()
    assert listener.ended.wait(WAIT)
    assert "no plan" in str(listener.error)
    harness.codec.fail = None
    assert harness.speak().ended.wait(WAIT)
    eventually(harness.is_empty)


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, Unavailable])
def test_a_dead_talker_ends_every_stream_and_refuses_new_ones(harness: Harness, kind: type[BaseException]) -> None:
    deaths: list[BaseException] = []
    harness.engine.on_death = deaths.append
    harness.runner.gate.clear()
    listeners = [harness.speak(seed, frames=50) for seed in range(8)]
    harness.runner.fail = kind("injected")
    harness.runner.gate.set()
    for listener in listeners:
        assert listener.ended.wait(WAIT)
        assert isinstance(listener.error, RequestError)
        assert listener.error.outcome is Outcome.ERROR
        assert str(listener.error) == "the engine died: injected"
    with pytest.raises(Unavailable, match="injected"):
        harness.speak()
    eventually(lambda: len(deaths) == 1)
    assert not harness.engine.is_alive
    eventually(harness.is_empty)


def test_shutdown_ends_running_waiting_and_decoding_streams(harness: Harness) -> None:
    harness.codec.gate.clear()
    listeners = [harness.speak(seed, frames=200) for seed in range(10)]
    eventually(lambda: bool(harness.engine.scheduler.table.decoding.any()))
    closing = threading.Thread(target=harness.engine.close)
    closing.start()
    for listener in listeners:
        assert listener.ended.wait(WAIT)
        assert isinstance(listener.error, RequestError)
        assert listener.error.outcome is Outcome.UNAVAILABLE
    harness.codec.gate.set()
    closing.join(WAIT)
    assert not closing.is_alive()
    with pytest.raises(Unavailable, match="shutting down"):
        harness.speak()


def test_shutdown_wakes_an_idle_engine(harness: Harness) -> None:
    harness.engine.close()
    assert not any(thread.is_alive() for thread in harness.engine._threads._threads.values())


def test_the_queue_refuses_when_full_and_accepts_after_draining() -> None:
    harness = Harness(slots=1, max_waiting=2)
    harness.runner.gate.clear()
    harness.engine.start()
    running = harness.speak()
    eventually(lambda: harness.engine.scheduler.slots.num_used == 1)
    waiting = [harness.speak(), harness.speak()]
    with pytest.raises(Unavailable, match="busy"):
        harness.speak()
    harness.runner.gate.set()
    assert all(listener.ended.wait(WAIT) for listener in [running, *waiting])
    assert harness.speak().ended.wait(WAIT)
    harness.engine.close()


def test_metrics_count_requests_frames_and_audio(harness: Harness) -> None:
    assert harness.speak(frames=10).ended.wait(WAIT)
    harness.runner.prefill_failures[7] = RuntimeError("no")
    assert harness.speak(seed=7).ended.wait(WAIT)
    readings = harness.engine.recorder.take()
    assert readings.counted["qwen3_tts_requests_total", "ok"] == 1
    assert readings.counted["qwen3_tts_requests_total", "error"] == 1
    assert readings.counted["qwen3_tts_frames_total", ""] == 10
    assert (
        1 <= readings.counted["qwen3_tts_codec_calls_total", ""] <= readings.counted["qwen3_tts_codec_chunks_total", ""]
    )
    assert readings.counted["qwen3_tts_audio_seconds_total", ""] == pytest.approx(0.8)
    assert len(readings.observed["qwen3_tts_time_to_first_audio_seconds"]) == 1
    assert harness.engine.recorder.take().observed == {}


@pytest.mark.parametrize("has_graphs", [False, True])
def test_a_gauge_says_whether_the_talker_runs_compiled_kernels(has_graphs: bool) -> None:
    parts = Harness()
    parts.runner.has_graphs = has_graphs
    engine = Engine(parts.engine.scheduler, parts.engine.state.chunker, parts.runner, parts.codec)
    assert engine.recorder.take().gauges["qwen3_tts_kernels"] == has_graphs
