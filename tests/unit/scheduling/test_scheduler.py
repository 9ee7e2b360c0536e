"""After any sequence of submit, tick, decode and cancel, nothing leaks and every stream ends once."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qwen3_tts_engine import metrics
from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.core.batches import Batch, Chunks, Frames
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.request import Unavailable
from qwen3_tts_engine.scheduling.capacity import Capacity, urgent_lead
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.gauges import read_gauges
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from scripts.lab.simulation import audible
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream

MAX_FRAMES = 24
NOW = 0.0
TICK_SECONDS, ROW_SECONDS = 0.01, 0.00125


def make_scheduler(slots: int = 4, pages: int = 20, *, batching_is_free: bool = True, **limits: Any) -> Scheduler:
    """Until a test adds measurements, work takes no time, or unknown time where batching is not free."""
    table = SlotTable(slots, MAX_FRAMES, NUM_CODEBOOKS)
    defaults = {"page_size": 4, "num_pages": pages, "max_batch": slots, "max_waiting": 8, "max_prefill_seconds": 1.0}
    return Scheduler(table, SchedulerLimits(**(defaults | limits)), Capacity(0, 8, batching_is_free=batching_is_free))


def frames_for(batch: Batch, ended: frozenset[int] = frozenset()) -> Frames:
    codes = np.tile(np.arange(NUM_CODEBOOKS), (len(batch), 1))
    return Frames(codes, np.isin(batch.slots, list(ended)))


class Traffic(RuleBasedStateMachine):
    """The scheduler under arbitrary traffic, with at most one tick and one codec call in flight."""

    @initialize(slots=st.integers(1, 4), pages=st.integers(7, 24), batch=st.integers(1, 4), rows=st.integers(1, 12))
    def start(self, slots: int, pages: int, batch: int, rows: int) -> None:
        self.scheduler = make_scheduler(slots, pages, max_batch=batch, max_prefill_seconds=rows * ROW_SECONDS)
        measure(self.scheduler)
        self.chunker = Chunker(self.scheduler.table, 8, lambda streams: 0.01)
        self.accepted: list[Stream] = []
        self.ended: list[Stream] = []
        self.tick: Batch | None = None
        self.chunks: Chunks | None = None
        self.now = 0.0

    @rule(max_frames=st.integers(1, MAX_FRAMES), rows=st.integers(2, 4))
    def submit(self, max_frames: int, rows: int) -> None:
        stream = make_stream(str(len(self.accepted)), Listener(), max_frames=max_frames, rows=rows)
        try:
            self.scheduler.submit(stream)
        except Unavailable:
            assert len(self.scheduler.admission.queue) >= 8
        else:
            self.accepted.append(stream)

    @precondition(lambda self: self.tick is None)
    @rule()
    def launch(self) -> None:
        self.tick = self.scheduler.next_batch(self.now)

    @precondition(lambda self: self.tick is not None)
    @rule(ended=st.frozensets(st.integers(0, 3)))
    def collect(self, ended: frozenset[int]) -> None:
        assert self.tick is not None
        self.now += 0.01
        self.ended += self.scheduler.collect(self.tick, frames_for(self.tick, ended), self.now)
        self.tick = None

    @precondition(lambda self: self.chunks is None)
    @rule()
    def dispatch(self) -> None:
        self.chunks = self.chunker.next_chunks(self.now)

    @precondition(lambda self: self.chunks is not None)
    @rule()
    def decoded(self) -> None:
        assert self.chunks is not None
        self.ended += self.scheduler.settle(self.chunker.done(self.chunks, audible(self.chunks), self.now))
        self.chunks = None

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(self.accepted))
        ended_before = stream in self.ended
        assert self.scheduler.end(stream) is not ended_before
        if not ended_before:
            self.ended.append(stream)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        assert len({id(s) for s in self.ended}) == len(self.ended), "a stream ended twice"
        live = [s for s in self.accepted if s not in self.ended]
        assert live == list(self.scheduler.live.values())

    def teardown(self) -> None:
        """Drains the scheduler: every stream ends and every slot and page is freed."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(2000):
            if self.tick is not None:
                self.collect(frozenset())
            if self.chunks is not None:
                self.decoded()
            if not self.scheduler.live:
                break
            self.launch()
            self.dispatch()
        assert sorted(map(id, self.ended)) == sorted(map(id, self.accepted))
        assert (self.scheduler.slots.num_used, self.scheduler.pages.num_used) == (0, 0)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=150, stateful_step_count=60)


def test_streams_are_admitted_in_order_of_arrival() -> None:
    scheduler = make_scheduler(slots=2)
    streams = [make_stream(str(i), Listener()) for i in range(4)]
    for stream in streams:
        scheduler.submit(stream)
    assert [n.stream for n in scheduler.next_batch(NOW).newcomers] == streams[:2]
    scheduler.end(streams[0])
    assert [n.stream for n in scheduler.next_batch(NOW).newcomers] == streams[2:3]


@pytest.mark.parametrize(("budget", "expected"), [(5.5, [1, 1, 1]), (8.5, [2, 1, 0]), (1000, [3, 0, 0])])
def test_a_tick_prefills_one_stream_and_what_its_time_allows_beside(budget: float, expected: list[int]) -> None:
    """Prompts of eight rows."""
    scheduler = make_scheduler(slots=4, pages=100, max_prefill_seconds=budget * ROW_SECONDS)
    measure(scheduler)
    for i in range(3):
        scheduler.submit(make_stream(str(i), Listener(), rows=8))
    assert [len(scheduler.next_batch(NOW).newcomers) for _ in range(3)] == expected


def test_prefills_take_as_long_as_a_tick_while_a_listener_is_about_to_underrun() -> None:
    scheduler = make_scheduler(slots=8, pages=100)
    measure(scheduler)
    listen(scheduler, count=2, lead=0.0)
    for i in range(6):
        scheduler.submit(make_stream(str(i), Listener(), rows=4))
    assert len(scheduler.next_batch(NOW).newcomers) == 1 + TICK_SECONDS / ROW_SECONDS / 4


def test_refuses_a_stream_when_the_queue_is_full() -> None:
    scheduler = make_scheduler(slots=1, max_waiting=1)
    scheduler.submit(make_stream("0", Listener()))
    scheduler.next_batch(NOW)
    scheduler.submit(make_stream("1", Listener()))
    with pytest.raises(Unavailable, match="busy: 1 streams run, 1 wait"):
        scheduler.submit(make_stream("2", Listener()))


def test_without_a_queue_accepts_a_stream_that_fits_at_once() -> None:
    scheduler = make_scheduler(slots=1, max_waiting=0)
    scheduler.submit(make_stream("0", Listener()))
    with pytest.raises(Unavailable):
        scheduler.submit(make_stream("1", Listener()))


def test_as_many_streams_start_as_stay_in_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(max_waiting=1)
    monkeypatch.setattr(scheduler.capacity, "admits", lambda streams: streams <= 2)
    for name, waiting in [("a", []), ("b", []), ("c", ["c"])]:
        scheduler.submit(make_stream(name, Listener()))
        scheduler.next_batch(NOW)
        assert [stream.key for stream in scheduler.admission.queue] == waiting
    with pytest.raises(Unavailable, match="busy: 2 streams run, 1 wait"):
        scheduler.submit(make_stream("d", Listener()))


def test_refuses_a_stream_without_a_free_slot_if_configured() -> None:
    scheduler = make_scheduler(slots=2, refuse_overload=True)
    for name in "01":
        scheduler.submit(make_stream(name, Listener()))
    with pytest.raises(Unavailable, match="busy: 0 streams run, max_streams is 2"):
        scheduler.submit(make_stream("2", Listener()))
    scheduler.next_batch(NOW)
    with pytest.raises(Unavailable, match="busy: 2 streams run, max_streams is 2"):
        scheduler.submit(make_stream("2", Listener()))


def test_refuses_a_stream_that_can_never_fit() -> None:
    scheduler = make_scheduler(pages=2)
    with pytest.raises(Unavailable, match="28 positions required, the key/value cache holds 8"):
        scheduler.submit(make_stream("0", Listener(), max_frames=24))


def test_late_frames_of_an_ended_stream_do_not_reach_the_next_stream_in_its_slot() -> None:
    scheduler = make_scheduler(slots=1)
    first, second = (make_stream(name, Listener()) for name in ("first", "second"))
    scheduler.submit(first)
    batch = scheduler.next_batch(NOW)
    scheduler.end(first)
    scheduler.submit(second)
    scheduler.next_batch(NOW)
    scheduler.collect(batch, frames_for(batch), 0.0)
    assert second.slot == 0
    assert scheduler.table.written[0] == 0


def test_a_full_batch_has_the_most_urgent_streams() -> None:
    scheduler = make_scheduler(slots=3, max_batch=2, pages=100)
    for i in range(3):
        scheduler.submit(make_stream(str(i), Listener()))
    scheduler.next_batch(NOW)
    scheduler.table.deadline[:] = [5.0, 1.0, 3.0]
    assert scheduler.next_batch(NOW).slots.tolist() == [1, 2]


def test_no_frame_is_launched_beyond_the_cap() -> None:
    scheduler = make_scheduler()
    scheduler.submit(make_stream("0", Listener(), max_frames=2))
    assert [len(scheduler.next_batch(NOW)) for _ in range(4)] == [1, 1, 0, 0]
    assert not scheduler.has_work(NOW)


def test_new_streams_get_their_own_batch_while_all_others_have_buffered_audio() -> None:
    scheduler = make_scheduler(slots=8, pages=100)
    measure(scheduler)
    listen(scheduler, count=2, lead=urgent_lead(TICK_SECONDS) + 2 * TICK_SECONDS)
    scheduler.submit(make_stream("first", Listener()))
    assert scheduler.next_batch(NOW).slots.tolist() == [2]
    scheduler.submit(make_stream("second", Listener()))
    assert scheduler.next_batch(NOW + 1).slots.tolist() == [0, 1, 2, 3], "a buffer is about to run dry"


def test_batches_of_new_streams_cost_a_hundredth_of_the_time() -> None:
    """A tick of theirs takes as long as one of all streams."""
    scheduler = make_scheduler(slots=30, pages=200)
    measure(scheduler)
    listen(scheduler, count=2, lead=1000.0)
    assert alone_at(scheduler, [0, 60, 120, 180, 240]) == [True, False, True, False, True]


def test_new_streams_get_their_own_batch_where_each_stream_costs_as_much_as_another() -> None:
    scheduler = make_scheduler(slots=30, pages=200)
    measure(scheduler)
    for streams in (1, 2, 4, 8) * 50:
        scheduler.capacity.add_tick(streams, streams * TICK_SECONDS)
    listen(scheduler, count=2, lead=1000.0)
    assert alone_at(scheduler, [0, 1, 2, 3]) == [True] * 4


def test_the_predicted_load_is_0_while_it_is_unknown() -> None:
    scheduler = make_scheduler(batching_is_free=False)
    listen(scheduler, count=1, lead=0.0)
    assert read_gauges(scheduler)[metrics.PREDICTED_LOAD.name] == 0.0
    scheduler.capacity.add_tick(1, FRAME_SECONDS / 2)
    scheduler.capacity.add_codec_call(8, 0.0)
    assert read_gauges(scheduler)[metrics.PREDICTED_LOAD.name] == pytest.approx(0.5)


def alone_at(scheduler: Scheduler, ticks: list[int]) -> list[bool]:
    """Whether a newcomer after each number of ticks has a batch of its own."""
    alone = []
    for i, tick in enumerate(ticks):
        scheduler.submit(make_stream(str(i), Listener()))
        alone.append(len(scheduler.next_batch(NOW + tick * TICK_SECONDS)) == 1)
    return alone


def measure(scheduler: Scheduler) -> None:
    """Ticks take TICK_SECONDS, prefills ROW_SECONDS a row, codec calls no time."""
    for rows in (1, 30) * 20:
        scheduler.capacity.add_tick(1, TICK_SECONDS)
        scheduler.capacity.add_tick(1, TICK_SECONDS + rows * ROW_SECONDS, prefill_rows=rows)


def listen(scheduler: Scheduler, count: int, lead: float) -> None:
    """Runs streams whose listeners have `lead` seconds of audio at NOW."""
    for i in range(count):
        scheduler.submit(make_stream(f"listening {i}", Listener()))
    batch = scheduler.next_batch(NOW)
    scheduler.collect(batch, frames_for(batch), NOW)
    scheduler.table.decoded[:count], scheduler.table.started[:count] = 1, True
    scheduler.table.deadline[:count] = NOW + lead
