"""Streams share fewer pages than their worst cases require, without stalls or lost frames."""

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3_tts_engine.core.batches import Batch, Frames, Newcomer
from qwen3_tts_engine.core.streams import Prompt, Stream
from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.scheduling import paging
from qwen3_tts_engine.scheduling.admission import MAX_OVERTAKING
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.paging import GROWTH_PAGES
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from scripts.lab.simulation import audible
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream
from tests.unit.engine.test_engine import WAIT, Harness, eventually

PAGE = 8
MAX_FRAMES = 400
PREFILL_SECONDS = 0.00001


def make_scheduler(slots: int, pages: int, page_size: int = PAGE, max_frames: int = MAX_FRAMES) -> Scheduler:
    table = SlotTable(slots, max_frames, NUM_CODEBOOKS)
    limits = SchedulerLimits(page_size, pages, slots, max_waiting=1000, max_prefill_seconds=1.0)
    return Scheduler(table, limits, Capacity(0, 8, batching_is_free=True))


def of_text(key: str, tokens: int, max_frames: int, rows: int, voice: int | None = None) -> Stream:
    """Prompts of the same `voice` have a common prefix, up to the page of their last row."""
    stream = make_stream(key, Listener(), max_frames=max_frames, rows=rows)
    stream.prompt.num_spoken = tokens
    if voice is not None:
        stream.prompt.prefix_hashes = tuple(f"{voice} {page}".encode() for page in range((rows - 1) // PAGE))
    return stream


@dataclass
class Machine:
    """A simulated engine with its own clock: the duration of a tick is given, codec calls take no time.

    `lengths` holds, by key, the frames after which a stream ends by itself.
    """

    scheduler: Scheduler
    lengths: dict[str, int] = field(default_factory=dict)
    row_seconds: float = 0.0005
    now: float = 0.0
    largest_stall: float = 0.0
    made: dict[str, list[int]] = field(default_factory=dict)
    in_flight: deque[tuple[Batch, np.ndarray]] = field(default_factory=deque)
    cached_rows: int = 0
    # What each page of the prompts holds.
    contents: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chunker = Chunker(self.scheduler.table, 8, self.scheduler.capacity.frame_seconds)
        self._frame = np.zeros(len(self.scheduler.table.streams), int)

    def tick(self) -> None:
        """Launches a tick, reads the previous one, sends ready chunks."""
        batch = self.scheduler.next_batch(self.now)
        self.contents |= dict.fromkeys(batch.grown[:, 2].tolist(), b"")
        rows = 0
        for newcomer in batch.newcomers:
            self._frame[newcomer.slot] = len(newcomer.frames)
            rows += len(newcomer.stream.prompt) + len(newcomer.frames) - newcomer.num_cached
            self._write(newcomer)
        frames = self._frame[batch.slots].copy()
        self._frame[batch.slots] += 1
        self.in_flight.append((batch, frames))
        self.scheduler.check_integrity()
        self.now += self._tick_seconds(batch) + PREFILL_SECONDS * rows
        if len(self.in_flight) > 1 or not len(batch):
            self._collect(*self.in_flight.popleft())
        self._send()

    def _write(self, newcomer: Newcomer) -> None:
        hashes, cached = newcomer.stream.prompt.prefix_hashes, newcomer.num_cached // PAGE
        assert [self.contents[page] for page in newcomer.pages[:cached]] == list(hashes[:cached])
        self.contents |= dict.fromkeys(newcomer.pages[cached:], b"") | dict(zip(newcomer.pages, hashes, strict=False))
        self.cached_rows += newcomer.num_cached

    def _tick_seconds(self, batch: Batch) -> float:
        return 0.002 + self.row_seconds * len(batch) if len(batch) else 0.0

    def _collect(self, batch: Batch, frames: np.ndarray) -> None:
        streams = [self.scheduler.table.streams[slot] for slot in batch.slots]
        ends = [frame >= self.lengths.get(s.key, 1 << 30) for s, frame in zip(streams, frames, strict=True) if s]
        ended = np.array(ends if len(ends) == len(batch) else [False] * len(batch), bool)
        codes = np.repeat(frames[:, None], NUM_CODEBOOKS, axis=1)
        if len(batch):
            self.scheduler.capacity.add_tick(len(batch), self._tick_seconds(batch))
        for stream in self.scheduler.collect(batch, Frames(codes, ended), self.now):
            assert stream.key not in self.scheduler.live

    def _send(self) -> None:
        table = self.scheduler.table
        while chunks := self.chunker.next_chunks(self.now):
            stalls = np.where(chunks.first, 0.0, self.now - table.deadline[chunks.slots])
            self.largest_stall = max(self.largest_stall, float(stalls.max()))
            for stream, codes, count in zip(chunks.streams, chunks.codes, chunks.counts, strict=True):
                self.made.setdefault(stream.key, []).extend(codes[:count, 0].tolist())
            self.scheduler.settle(self.chunker.done(chunks, audible(chunks), self.now))


@settings(max_examples=40)
@given(st.integers(0, 1 << 30), st.floats(0.3, 1.0), st.integers(4, 24), st.booleans())
def test_streams_end_without_stalls_with_a_fraction_of_the_pages(
    seed: int, part: float, slots: int, to_the_cap: bool
) -> None:
    """Random arrivals, lengths and cancels on a machine faster than real time; with `to_the_cap`, all streams run to
    their cap and require three times the expected pages."""
    chance = random.Random(seed)
    rows = 20
    tokens = [chance.randint(1, 40) for _ in range(3 * slots)]
    voices = [chance.choice([None, 0, 1, 2]) for _ in tokens]
    streams = [
        of_text(str(i), n, min(MAX_FRAMES, 75 + 12 * n), rows, voice)
        for i, (n, voice) in enumerate(zip(tokens, voices, strict=True))
    ]
    most = -(-(rows + MAX_FRAMES) // PAGE)
    machine = Machine(make_scheduler(slots, max(most, int(part * slots * most))))
    for stream in streams:
        if not to_the_cap:
            usual = 4 * stream.prompt.num_spoken
            machine.lengths[stream.key] = chance.choice([chance.randint(1, stream.max_frames), usual, usual])
    coming = sorted((chance.uniform(0, 1.0), i) for i in range(len(streams)))
    cancels = sorted((at + chance.uniform(0, 5.0), i) for at, i in coming if chance.random() < 0.2)
    while coming or machine.scheduler.live:
        while coming and coming[0][0] <= machine.now:
            arrived, i = coming.pop(0)
            streams[i].arrived = arrived
            machine.scheduler.submit(streams[i])
        while cancels and cancels[0][0] <= machine.now:
            machine.scheduler.end(streams[cancels.pop(0)[1]])
        machine.now += 0.001 * (not machine.scheduler.has_work(machine.now))
        machine.tick()
    assert machine.largest_stall <= 0
    assert machine.scheduler.pages.num_used == machine.scheduler.slots.num_used == 0
    for stream in streams:
        frames = machine.made.get(stream.key, [])
        assert frames == [*range(len(frames))], "a frame was lost or duplicated"


@pytest.mark.long
@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(1, 8))
def test_every_stream_ends_with_the_fewest_possible_pages(seed: int, slots: int) -> None:
    """There are up to two pages more than the longest stream requires; every stream runs to its cap."""
    chance = random.Random(seed)
    machine = Machine(make_scheduler(slots, -(-(4 + 120) // PAGE) + chance.randint(0, 2)))
    rows = chance.choice([4, 12])
    streams = [of_text(str(i), chance.randint(0, 20), chance.randint(1, 112), rows, voice=0) for i in range(20)]
    for stream in streams:
        machine.scheduler.submit(stream)
        for _ in range(chance.randint(0, 10)):
            machine.tick()
    for _ in range(100_000):
        if not machine.scheduler.live:
            break
        machine.tick()
    assert [len(machine.made[s.key]) for s in streams] == [s.max_frames for s in streams]


def test_a_common_prefix_is_prefilled_once() -> None:
    """The first two run together; the others come later, one after the last stream of the voice has ended."""
    machine = Machine(make_scheduler(8, 64))
    streams = [of_text(str(i), 4, 20, rows=20, voice=0) for i in range(5)]
    other = of_text("other", 4, 20, rows=20, voice=1)

    def speak(*speakers: Stream) -> int:
        before = machine.cached_rows
        for stream in speakers:
            machine.scheduler.submit(stream)
        machine.tick()
        machine.tick()
        return machine.cached_rows - before

    assert speak(*streams[:2]) == 0
    assert speak(*streams[2:4], other) == 2 * 2 * PAGE
    assert machine.scheduler.pages.num_used < sum(len(s.pages) for s in (*streams[:4], other))
    while machine.scheduler.live:
        machine.tick()
    assert machine.scheduler.pages.num_used == 0
    assert speak(streams[4]) == 2 * PAGE


def test_a_prefix_whose_prefill_failed_is_not_cached() -> None:
    machine = Machine(make_scheduler(4, 64))
    failing, next_one = (of_text(key, 4, 20, rows=20, voice=0) for key in ("failing", "next"))
    machine.scheduler.submit(failing)
    batch = machine.scheduler.next_batch(machine.now)
    machine.scheduler.end(failing)
    machine.scheduler.collect(
        batch.without(batch.newcomers), Frames(np.zeros((0, NUM_CODEBOOKS)), np.zeros(0, bool)), 0
    )
    machine.scheduler.submit(next_one)
    machine.tick()
    assert machine.cached_rows == 0


def test_nobody_is_parked_for_pages_that_others_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parking `ahead` would free one page: `behind` holds the two that they begin with."""
    monkeypatch.setattr(paging, "RESERVE_SHARE", 1.0)
    machine = Machine(make_scheduler(4, 10))
    scheduler, table = machine.scheduler, machine.scheduler.table
    ahead, behind = (of_text(key, 4, 30, rows=20, voice=0) for key in ("ahead", "behind"))
    parked = of_text("parked", 4, 30, rows=20)
    for stream in (ahead, behind, parked):
        scheduler.submit(stream)
        machine.tick()
        machine.tick()
    scheduler.paging.park(parked.slot)
    scheduler.pages.allocate(scheduler.pages.num_free)
    assert (ahead.pages[:2], len(ahead.pages), len(behind.pages)) == (behind.pages[:2], 3, 3)
    table.started[:] = True
    table.deadline[[ahead.slot, behind.slot, parked.slot]] = machine.now + np.array([10.0, 0.1, 0.0])
    assert not scheduler.paging.make_room(parked, machine.now)
    assert len(ahead.pages) == 3


def test_streams_start_with_their_expected_pages_and_grow_by_several_while_enough_are_free() -> None:
    machine = Machine(make_scheduler(2, 64))
    machine.scheduler.submit(of_text("0", 4, 60, rows=10))
    grown = []
    while machine.scheduler.live:
        stream = machine.scheduler.live["0"]
        grown.append(len(stream.pages))
        machine.tick()
    # 10 rows and the expected 15 frames; then in steps, but no more than the longest utterance takes.
    assert sorted({*grown} - {0}) == [4, 4 + GROWTH_PAGES, 9]


def test_nobody_is_parked_while_the_free_pages_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream grows into the last page of the cache."""
    machine = Machine(make_scheduler(1, 9))
    scheduler, held = machine.scheduler, set[int]()
    monkeypatch.setattr(scheduler.paging, "park", lambda slot: pytest.fail("parked"))
    scheduler.submit(of_text("0", 4, 60, rows=10))
    while scheduler.live:
        machine.tick()
        held.add(scheduler.pages.num_used)
    assert max(held) == scheduler.pages.size


def test_streams_start_with_their_prompts_pages_once_half_of_the_cache_is_taken() -> None:
    machine = Machine(make_scheduler(4, 10))
    streams = [of_text(str(i), 4, 60, rows=10) for i in range(2)]
    for stream in streams:
        machine.scheduler.submit(stream)
        machine.tick()
    assert [len(stream.pages) for stream in streams] == [4, 2]


@pytest.mark.parametrize(("rows", "has_room"), [(10, True), (20, False)])
def test_a_newcomer_leaves_a_page_for_each_running_stream(rows: int, has_room: bool) -> None:
    machine = Machine(make_scheduler(4, 10))
    for i in range(2):
        machine.scheduler.submit(of_text(str(i), 4, 60, rows=10))
        machine.tick()
    assert machine.scheduler.pages.num_free == 4
    # It takes two pages or three.
    assert machine.scheduler.paging.has_room(of_text("newcomer", 4, 60, rows), machine.now) == has_room


def test_a_newcomer_leaves_none_for_a_stream_that_has_all_of_its_pages() -> None:
    scheduler = make_scheduler(2, pages=2)
    for key in "ab":
        scheduler.submit(make_stream(key, Listener(), rows=2, max_frames=PAGE - 1))
        scheduler.next_batch(0.0)
    assert not scheduler.admission.queue
    assert scheduler.pages.num_free == 0


def test_the_default_cache_fits_a_long_text_in_every_slot() -> None:
    """256 slots of 512 positions; texts of 199 tokens that take 750 of at most 2 463 frames."""
    scheduler = make_scheduler(256, 256 * 512 // 32, page_size=32, max_frames=4096)
    machine = Machine(scheduler, row_seconds=0.00002)
    for i in range(300):
        machine.lengths[str(i)] = 750
        scheduler.submit(of_text(str(i), 199, 2463, 20))
    running = []
    while scheduler.live:
        machine.tick()
        running.append(scheduler.slots.num_used)
    assert max(running) == 256
    assert machine.largest_stall <= 0


def test_a_limited_number_of_requests_overtake_a_long_one() -> None:
    machine = Machine(make_scheduler(64, 20))
    scheduler = machine.scheduler
    first, long = (of_text(key, 60, 139, 20) for key in ("first", "long"))
    scheduler.submit(first)
    while len(first.pages) < 14:
        machine.tick()
    overtaking = [of_text(str(i), 1, 1, 2) for i in range(MAX_OVERTAKING + 20)]
    for stream in (long, *overtaking):
        scheduler.submit(stream)
    for _ in range(20):
        machine.tick()
    assert long in scheduler.admission.queue
    assert sum(stream not in scheduler.admission.queue for stream in overtaking) == MAX_OVERTAKING
    scheduler.end(first)
    assert long in [newcomer.stream for newcomer in scheduler.next_batch(machine.now).newcomers]


@pytest.mark.parametrize(("lookahead", "take_turns"), [(0, False), (1, False), (1, True)])
def test_parked_streams_resume_without_losing_frames(lookahead: int, take_turns: bool) -> None:
    harness = Harness(slots=8, lookahead=lookahead, take_turns=take_turns, pages=40)
    parked = []
    park = harness.engine.scheduler.paging.park

    def recorded(slot: int) -> None:
        parked.append(slot)
        park(slot)

    harness.engine.scheduler.paging.park = recorded  # type: ignore[method-assign]
    harness.engine.start()
    try:
        listeners = [harness.speak(seed, frames=60 + 10 * (seed % 8)) for seed in range(32)]
        for seed, listener in enumerate(listeners):
            assert listener.ended.wait(WAIT)
            assert listener.error is None
            assert listener.signatures() == [(seed, frame) for frame in range(60 + 10 * (seed % 8))]
        assert parked
        eventually(harness.is_empty)
    finally:
        harness.engine.close()


def test_a_stream_that_waits_for_text_releases_pages_that_another_requires() -> None:
    scheduler = make_scheduler(4, 10)
    paused = []
    for key in "ab":
        stream = of_text(key, 2, 60, 8)
        stream.prompt = Prompt(stream.prompt.text_ids, stream.prompt.code_ids, [1, 2], 2, max_frames=60, is_open=True)
        stream.is_open = True
        scheduler.submit(stream)
        paused.append(stream)
    machine = Machine(scheduler)
    while scheduler.has_work(machine.now):
        machine.tick()
    machine.tick()
    assert scheduler.table.paused[:2].all()
    other = of_text("c", 10, 66, 8)
    scheduler.submit(other)
    while other.key in scheduler.live:
        machine.tick()
    assert machine.made["c"] == [*range(66)]
    for stream in paused:
        stream.prompt.arrived += range(3, 20)
        stream.prompt.complete = True
        stream.is_open = False
        scheduler.update(stream)
    while scheduler.live:
        machine.tick()
    assert [machine.made[key] for key in "ab"] == [[*range(60)]] * 2
