"""Chunks start small, grow, leave in order of urgency and lose no frame."""

from itertools import chain
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_CALL_FRAMES
from qwen3_tts_engine.scheduling.capacity import urgent_lead
from qwen3_tts_engine.scheduling.chunker import Chunker, Need
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from scripts.lab.simulation import audible
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream, start_in_slot


def table_with(pending: list[int], sent: list[int] | None = None, done: bool = False) -> SlotTable:
    table = SlotTable(len(pending), 64, NUM_CODEBOOKS)
    for slot in range(len(pending)):
        start_in_slot(table, slot, make_stream(str(slot), Listener(), max_frames=64))
        table.codes[slot] = np.arange(64)[:, None] + 100 * slot
    table.decoded[:] = sent or [0] * len(pending)
    table.written[:] = table.decoded + pending
    table.written_at[:] = 0
    table.talking[:] = not done
    return table


def chunker_of(table: SlotTable, frame_seconds: float = 0.002) -> Chunker:
    return Chunker(table, 8, lambda streams: frame_seconds)


def speak(frames: int, frame_seconds: float) -> tuple[list[int], float]:
    """Chunk lengths of one stream with evenly spaced frames, and its largest stall in seconds."""
    table = table_with([0])
    chunker = chunker_of(table, frame_seconds)
    lengths, stalls = list[int](), list[float]()
    for made in range(1, frames + 1):
        now = made * frame_seconds
        table.written[0] = made
        table.talking[0] = made < frames
        while chunks := chunker.next_chunks(now):
            stalls.append(now - table.deadline[0] if lengths else 0.0)
            lengths += chunks.counts.tolist()
            chunker.done(chunks, audible(chunks), now)
    assert sum(lengths) == frames
    return lengths, max(stalls)


def test_a_fast_talker_sends_one_frame_and_then_long_chunks() -> None:
    assert speak(40, 0.002)[0] == [1, 8, 8, 8, 8, 7]


def test_chunks_of_a_slower_talker_grow_with_the_lead() -> None:
    lengths, stall = speak(60, 0.02)
    assert lengths[:-1] == sorted(lengths[:-1])
    assert {1, 2, 4, 8} <= set(lengths[:-1])
    assert stall <= 0


@given(st.integers(1, 60), st.floats(0.001, FRAME_SECONDS))
def test_playback_never_stalls_while_a_chunk_is_made(frames: int, frame_seconds: float) -> None:
    assert speak(frames, frame_seconds)[1] < 1e-9


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 24), st.floats(-1, 2), st.booleans()), min_size=1, max_size=6
    ),
    st.sampled_from(CHUNK_FRAMES),
    st.floats(0.001, 0.2),
)
def test_codec_calls_have_verified_lengths_only(
    streams: list[tuple[int, int, float, bool]], longest: int, frame_seconds: float
) -> None:
    pending, sent, lead, talking = zip(*streams, strict=True)
    table = table_with(list(pending), list(sent))
    table.deadline[:], table.talking[:] = lead, talking
    chunker = Chunker(table, longest, lambda streams: frame_seconds)
    while chunks := chunker.next_chunks(0.0):
        assert chunks.codes.shape[1] in CHUNK_FRAMES
        assert chunks.codes.shape[1] <= longest
        assert len(chunks) <= MAX_BATCH
        chunker.done(chunks, audible(chunks), 0.0)


@pytest.mark.parametrize(("most", "sizes"), [(1024, [5]), (16, [2, 2, 1]), (4, [1, 1, 1, 1, 1])])
def test_a_call_of_a_cpu_holds_the_most_urgent_chunks(most: int, sizes: list[int]) -> None:
    """An urgent chunk that comes next waits for one short call."""
    table = table_with([8] * 5, sent=[10] * 5)
    table.deadline[:] = 5.0, 2.0, 4.0, 1.0, 3.0
    chunker = Chunker(table, 8, lambda streams: 0.002, lambda streams, lead: most)
    calls = []
    while chunks := chunker.next_chunks(0.0):
        calls.append(chunks.slots.tolist())
        assert chunks.codes[..., 0].size <= most
    assert [len(call) for call in calls] == sizes
    assert list(chain(*calls)) == [3, 1, 4, 2, 0]


def test_a_call_is_bound_by_the_lead_of_the_most_urgent_listener() -> None:
    """Of those that a call could serve: that have heard something, have more to hear, and are not at the codec."""
    table = table_with([8] * 5, sent=[10, 10, 0, 10, 10])
    table.deadline[:], table.started[:] = [1.0, 1.5, 0.1, 0.2, 0.3], [True, True, False, True, True]
    table.decoding[3], table.talking[4] = True, False
    call_frames = Mock(return_value=4)
    chunker = Chunker(table, 8, lambda streams: 0.002, call_frames)
    assert chunker.next_chunks(0.25) is not None
    call_frames.assert_called_once_with(4, 0.75)


@given(st.integers(1, 60), st.floats(FRAME_SECONDS, 0.2))
def test_a_talker_slower_than_real_time_sends_single_frames(frames: int, frame_seconds: float) -> None:
    assert set(speak(frames, frame_seconds)[0]) == {1}


def test_waits_for_a_full_chunk_while_there_is_time() -> None:
    table = table_with([1], sent=[1])
    table.deadline[:] = 0.08
    chunker = chunker_of(table)
    assert chunker.next_chunks(0.0) is None
    assert chunker.next_chunks(0.0775) is not None


def test_a_frame_goes_alone_where_the_lead_allows_less_than_another() -> None:
    table = table_with([1], sent=[1])
    table.deadline[:] = lead = 0.1
    assert lead > urgent_lead(0.06)
    assert chunker_of(table, 0.06).next_chunks(0.0) is not None
    table.decoding[:] = False
    assert chunker_of(table, 0.02).next_chunks(0.0) is None


def test_sends_a_partial_chunk_when_the_buffer_is_about_to_run_dry() -> None:
    table = table_with([3], sent=[10])
    table.deadline[:] = 1.0
    chunker = chunker_of(table)
    urgent = urgent_lead(0.002)
    assert chunker.next_chunks(1.0 - 1.01 * urgent) is None
    assert chunker.next_chunks(1.0 - 0.99 * urgent) is not None


def is_due(table: SlotTable, need: Need) -> bool:
    """Whether there are chunks for such a need; leaves the table unchanged."""
    chunks = chunker_of(table).next_chunks(0.0, need)
    table.decoding[:] = False
    return chunks is not None


def test_a_call_is_due_for_a_first_frame_or_for_half_of_the_streams() -> None:
    table = table_with([8, 8, 1, 1, 1, 1], sent=[8] * 6)
    table.launched[:] = table.written
    table.deadline[:] = 1.0
    assert [is_due(table, need) for need in Need] == [True, False, False]
    table.written[2] += 7
    assert [is_due(table, need) for need in Need] == [True, True, False]
    table.written[2] -= 7
    assert not chunker_of(table).will_be_due(0.0)
    table.launched[2] += 7
    assert not is_due(table, Need.WORTHWHILE)
    assert chunker_of(table).will_be_due(0.0)
    table.launched[2] -= 7
    table.decoded[3], table.deadline[3] = 0, -1e9
    assert [is_due(table, need) for need in Need] == [True, True, True]
    assert chunker_of(table).will_be_due(0.0)


@pytest.mark.parametrize(
    ("talker_has_work", "last_was_call", "need"),
    [(True, True, Need.URGENT), (True, False, Need.WORTHWHILE), (False, True, Need.ANY), (False, False, Need.ANY)],
)
def test_a_call_after_a_call_delays_the_talker_for_an_urgent_chunk_only(
    talker_has_work: bool, last_was_call: bool, need: Need
) -> None:
    assert Need.between_ticks(talker_has_work, last_was_call) is need


@pytest.mark.parametrize(("pending", "done"), [([0, 1], False), ([0, 0], True)])
def test_no_call_is_due_without_chunks(pending: list[int], done: bool) -> None:
    table = table_with(pending, sent=[8, 8], done=done)
    table.deadline[:] = 1.0
    assert not any(is_due(table, need) for need in Need)
    assert not chunker_of(table).will_be_due(0.0)


def test_without_urgency_the_call_with_most_rows_goes_first() -> None:
    table = table_with([4, 8, 8], sent=[8, 8, 8])
    table.deadline[:] = [1.0, 2.0, 3.0]
    chunks = chunker_of(table, FRAME_SECONDS).next_chunks(0.0)
    assert chunks is not None
    assert chunks.slots.tolist() == [1, 2]


def test_pads_the_last_chunk_to_a_power_of_two() -> None:
    table = table_with([3], sent=[15], done=True)
    chunks = chunker_of(table).next_chunks(0.0)
    assert chunks is not None
    assert chunks.codes[0, :, 0].tolist() == [15, 16, 17, 17]
    assert chunks.counts.tolist() == [3]


def test_urgent_streams_share_a_call_of_their_shortest_length() -> None:
    table = table_with([2, 8, 2, 8], sent=[0, 15, 0, 15])
    table.deadline[:] = [0.04, 0.01, 0.03, 9.0]
    chunker = chunker_of(table, FRAME_SECONDS)
    first, second = chunker.next_chunks(0.0), chunker.next_chunks(0.0)
    assert first is not None
    assert second is not None
    assert first.slots.tolist() == [1, 2, 0]
    assert first.codes[:, :, 0].tolist() == [[115, 116], [200, 201], [0, 1]]
    assert first.history.tolist() == [15, 0, 0]
    assert second.slots.tolist() == [3]
    assert second.codes.shape[1] == 8


def test_of_many_urgent_chunks_every_second_call_takes_more_than_the_shortest() -> None:
    """Newcomers' first frames must not make everybody's calls as short."""
    table = table_with([1] * 8 + [8] * 2 * MAX_BATCH)
    table.deadline[:] = 0
    table.deadline[:8] = -1
    chunker = chunker_of(table)
    calls = []
    while chunks := chunker.next_chunks(now=1.0):
        calls.append(chunks.codes.shape[:2])
        chunker.done(chunks, audible(chunks), 1.0)
        table.deadline[chunks.slots] = 0
    assert calls[:2] == [(MAX_BATCH, 8), (MAX_BATCH, 1)]
    assert sum(rows * frames for rows, frames in calls) == 8 + 8 * 2 * MAX_BATCH


def test_a_call_has_a_limited_number_of_frames() -> None:
    table = table_with([8] * 80, sent=[8] * 80)
    table.deadline[:] = 9.0
    chunker = chunker_of(table, FRAME_SECONDS)
    calls = [chunks.codes.shape[:2] for _ in range(2) if (chunks := chunker.next_chunks(0.0))]
    assert calls == [(MAX_CALL_FRAMES // 8, 8), (80 - MAX_CALL_FRAMES // 8, 8)]


def test_a_last_chunk_joins_a_longer_call() -> None:
    table = table_with([8, 3], sent=[15, 15])
    table.talking[1] = False
    table.deadline[:] = [1.0, 2.0]
    chunks = chunker_of(table).next_chunks(0.0)
    assert chunks is not None
    assert chunks.slots.tolist() == [0, 1]
    assert chunks.counts.tolist() == [8, 3]
    assert chunks.codes.shape[1] == 8


def test_a_stream_has_at_most_one_chunk_at_the_codec() -> None:
    table = table_with([3])
    chunker = chunker_of(table)
    assert chunker.next_chunks(0.0) is not None
    assert chunker.next_chunks(0.0) is None


def test_the_deadline_is_the_end_of_the_buffered_audio() -> None:
    table = table_with([1])
    chunker = chunker_of(table, FRAME_SECONDS)
    for now, pending, deadline in ((10.0, 1, 10.08), (10.05, 2, 10.24), (11.0, 4, 11.32)):
        table.written[:] = table.decoded + pending
        chunks = chunker.next_chunks(now)
        assert chunks is not None
        chunker.done(chunks, audible(chunks), now)
        assert table.deadline[0] == pytest.approx(deadline)
