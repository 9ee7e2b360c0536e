"""Streams with text in pieces and parts: nothing leaks, and the talker is fed exactly the text."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from qwen3_tts_engine.core.batches import Batch, TextFeed
from qwen3_tts_engine.core.streams import Prompt, Status, Stream, no_prompt
from qwen3_tts_engine.request import Unavailable
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream
from tests.unit.scheduling.test_scheduler import MAX_FRAMES, Traffic, make_scheduler

ROWS = 3
RESERVED = 10


def make_prompt(trailing: list[int], is_open: bool = False, frames: int | None = None) -> Prompt:
    rows, codes = np.zeros(ROWS, np.int32), np.zeros((ROWS, NUM_CODEBOOKS), np.int32)
    return Prompt(rows, codes, trailing, len(trailing), max_frames=frames, is_open=is_open)


def make_held(key: str, max_frames: int = MAX_FRAMES) -> Stream:
    stream = make_stream(key, Listener(), max_frames=max_frames)
    stream.prompt, stream.is_open, stream.reserved_frames = no_prompt(NUM_CODEBOOKS), True, RESERVED
    return stream


@dataclass
class DeviceSlot:
    """The runner's view of a part: the ids it has, and the id that each launched frame was fed."""

    trailing: list[int]
    is_open: bool
    fed: list[int | None] = field(default_factory=list)

    def launch(self) -> None:
        frame = len(self.fed)
        if frame < len(self.trailing):
            self.fed.append(self.trailing[frame])
        else:
            assert not self.is_open or frame == len(self.trailing), "more than one frame ran ahead of the text"
            self.fed.append(None if self.is_open else 0)

    def take(self, feed: TextFeed) -> None:
        assert self.is_open
        assert feed.start == len(self.trailing)
        if feed.late:
            assert self.fed[-1] is None
            assert len(self.fed) == feed.start + 1
            self.fed[-1] = feed.ids[0]
        else:
            assert len(self.fed) <= feed.start
        self.trailing += feed.ids
        self.is_open = feed.is_open


class TextTraffic(Traffic):
    """Traffic with text: the ids of a part count up from 1, and 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.device: dict[int, DeviceSlot] = {}

    @rule(lengths=st.lists(st.integers(0, 5), min_size=2, max_size=4), frames=st.integers(1, MAX_FRAMES))
    def submit_parts(self, lengths: list[int], frames: int) -> None:
        stream = make_stream(str(len(self.accepted)), Listener(), max_frames=frames)
        stream.prompt, *following = (make_prompt([*range(1, n + 1)], frames=2 + n) for n in lengths)
        stream.following.extend(following)
        self._accept(stream)

    @rule(frames=st.integers(1, MAX_FRAMES))
    def submit_without_text(self, frames: int) -> None:
        self._accept(make_held(str(len(self.accepted)), frames))

    @precondition(lambda self: any(s.is_open for s in self.accepted))
    @rule(data=st.data(), count=st.integers(0, 3), ends=st.booleans(), last=st.booleans())
    def update(self, data: st.DataObject, count: int, ends: bool, last: bool) -> None:
        stream = data.draw(st.sampled_from([s for s in self.accepted if s.is_open]))
        self._update(stream, count, ends, last)

    @precondition(lambda self: self.tick is None)
    @rule()
    def launch(self) -> None:
        self.tick = self.scheduler.next_batch(self.now)
        assert self.tick is not None
        self._mirror(self.tick)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for stream in self.accepted:
            if stream.is_open:
                self._update(stream, 1, ends=True, last=True)
        super().teardown()

    def _accept(self, stream: Stream) -> None:
        try:
            self.scheduler.submit(stream)
        except Unavailable:
            return
        self.accepted.append(stream)

    def _update(self, stream: Stream, count: int, ends: bool, last: bool) -> None:
        part = self._open_part(stream)
        if part is None and count:
            part = make_prompt([*range(1, count)], is_open=True, frames=RESERVED)
            part.num_spoken = count - 1
            if len(stream.prompt):
                stream.following.append(part)
            else:
                stream.prompt = part
        elif part:
            part.arrived += range(part.num_spoken + 1, part.num_spoken + count + 1)
            part.num_spoken += count
        if part and (ends or last):
            part.num_spoken += 1
            part.arrived.append(part.num_spoken)
            part.complete = True
        # Sequences refuses the end of a text without words; here it ends the stream.
        stream.is_open = not last
        try:
            ended = self.scheduler.update(stream)
        except Unavailable:
            ended = self.scheduler.end(stream)
        if last and stream.status is Status.HOLDING:
            ended = self.scheduler.end(stream)
        if ended:
            self.ended.append(stream)

    @staticmethod
    def _open_part(stream: Stream) -> Prompt | None:
        newest = stream.following[-1] if stream.following else stream.prompt
        return newest if newest.is_open and not newest.complete else None

    def _mirror(self, tick: Batch) -> None:
        for newcomer in tick.newcomers:
            prompt = newcomer.stream.prompt
            self.device[newcomer.slot] = DeviceSlot(list(prompt.trailing), prompt.is_open)
        for feed in tick.feeds:
            self.device[feed.slot].take(feed)
        for slot in tick.slots:
            self.device[int(slot)].launch()
        for state in self.device.values():
            known = [i for i in state.fed if i is not None]
            text = [i for i in known if i]
            assert text == [*range(1, len(text) + 1)], "text was fed twice, omitted or reordered"
            assert known == text + [0] * (len(known) - len(text)), "padding was fed before the end of the text"
            assert not state.is_open or 0 not in known


TestTextTraffic = TextTraffic.TestCase
TestTextTraffic.settings = settings(max_examples=250, stateful_step_count=60)


def test_a_stream_pauses_without_text_and_resumes() -> None:
    scheduler = make_scheduler()
    stream = make_held("0")
    scheduler.submit(stream)
    assert not scheduler.has_work(0.0)
    stream.prompt = make_prompt([1], is_open=True, frames=RESERVED)
    scheduler.update(stream)
    assert [len(scheduler.next_batch(0.0)) for _ in range(4)] == [1, 1, 0, 0]
    assert not scheduler.has_work(0.0)
    stream.prompt.arrived.append(2)
    scheduler.update(stream)
    assert scheduler.has_work(0.0)
    [feed] = scheduler.next_batch(0.0).feeds
    assert feed == TextFeed(0, 1, [2], is_open=True, late=True, num_spoken=stream.prompt.num_spoken)
    assert not scheduler.has_work(0.0)


def test_limits_streams_that_wait_for_their_first_words() -> None:
    scheduler = make_scheduler(slots=1, max_waiting=1)
    held = [make_held(str(i)) for i in range(3)]
    scheduler.submit(held[0])
    scheduler.submit(held[1])
    with pytest.raises(Unavailable, match="2 streams wait for their first text"):
        scheduler.submit(held[2])
    assert scheduler.end(held[0])
    scheduler.submit(held[2])
    scheduler.check_integrity()
