"""Chunks start small, grow, go out most urgent first and lose no frame."""

import numpy as np
import pytest

from qwen3_tts_engine.chunker import Chunker
from qwen3_tts_engine.slots import SlotTable
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream


def table_with(pending: list[int], sent: list[int] | None = None, done: bool = False) -> SlotTable:
    table = SlotTable(len(pending), 64, NUM_CODEBOOKS)
    for slot in range(len(pending)):
        table.open(slot, make_stream(str(slot), Listener(), max_frames=64))
        table.codes[slot] = np.arange(64)[:, None] + 100 * slot
    table.sent[:] = sent or [0] * len(pending)
    table.written[:] = table.sent + pending
    table.written_at[:] = 0
    table.talking[:] = not done
    return table


def drain(table: SlotTable, chunker: Chunker) -> list[int]:
    lengths = []
    while chunks := chunker.next_chunks():
        lengths += chunks.counts.tolist()
        chunker.done(chunks, 0.0)
    return lengths


def test_the_ramp_doubles_to_its_limit() -> None:
    table = table_with([47])
    assert drain(table, Chunker(table, 8)) == [1, 2, 4, 8, 8, 8, 8, 8]


@pytest.mark.parametrize("frames", range(1, 40))
def test_every_frame_of_an_utterance_goes_out_once(frames: int) -> None:
    table = table_with([frames], done=True)
    assert sum(drain(table, Chunker(table, 8))) == frames


def test_nothing_goes_out_before_the_chunk_is_full() -> None:
    table = table_with([1], sent=[1])
    chunker = Chunker(table, 8)
    assert not chunker.has_chunks
    assert chunker.next_chunks() is None


def test_the_last_chunk_is_filled_up_to_a_common_length() -> None:
    table = table_with([3], sent=[15], done=True)
    chunks = Chunker(table, 8).next_chunks()
    assert chunks is not None
    assert chunks.codes[0, :, 0].tolist() == [15, 16, 17, 17]
    assert chunks.counts.tolist() == [3]


def test_chunks_of_one_length_share_a_call_and_the_most_urgent_length_goes_first() -> None:
    table = table_with([1, 8, 1, 8], sent=[0, 15, 0, 15])
    table.deadline[:] = [4.0, 1.0, 3.0, 2.0]
    chunker = Chunker(table, 8)
    first, second = chunker.next_chunks(), chunker.next_chunks()
    assert first is not None
    assert second is not None
    assert first.slots.tolist() == [1, 3]
    assert second.slots.tolist() == [2, 0]
    assert first.codes[:, 0, 0].tolist() == [115, 315]
    assert first.history.tolist() == [15, 15]


def test_a_stream_has_one_chunk_at_the_codec_at_a_time() -> None:
    table = table_with([3])
    chunker = Chunker(table, 8)
    assert chunker.next_chunks() is not None
    assert chunker.next_chunks() is None


def test_the_deadline_is_when_the_listener_runs_dry() -> None:
    table = table_with([7])
    chunker = Chunker(table, 8)
    for now, deadline in ((10.0, 10.08), (10.05, 10.24), (11.0, 11.32)):
        chunks = chunker.next_chunks()
        assert chunks is not None
        chunker.done(chunks, now)
        assert table.deadline[0] == pytest.approx(deadline)
