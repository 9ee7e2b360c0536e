"""Pools allocate each index once; `in_use` ends soon after the last slot in use."""

import numpy as np
import pytest

from qwen3_tts_engine.core.streams import Status
from qwen3_tts_engine.scheduling.slot_table import VIEW_STEP, Pool, SlotTable
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream, start_in_slot


def test_allocates_the_lowest_indices_first() -> None:
    pool = Pool(4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([1])
    assert pool.allocate(2) == [1, 3]
    pool.free([2])
    pool.free([3, 0])
    assert pool.allocate(3) == [0, 2, 3]
    pool.check_integrity()


def test_allocates_nothing_if_too_few_are_free() -> None:
    pool = Pool(2)
    pool.allocate(1)
    with pytest.raises(IndexError):
        pool.allocate(2)
    assert (pool.num_free, pool.num_used) == (1, 1)
    pool.check_integrity()


def test_double_free_is_an_error() -> None:
    pool = Pool(2)
    allocated = pool.allocate(1)
    pool.free(allocated)
    with pytest.raises(KeyError):
        pool.free(allocated)
    pool.check_integrity()


def test_in_use_is_a_view_that_ends_soon_after_the_last_slot() -> None:
    table = SlotTable(3 * VIEW_STEP // 2, 16, NUM_CODEBOOKS)
    assert len(table.in_use.talking) == 0
    streams = {slot: make_stream(str(slot), Listener()) for slot in (0, 1, VIEW_STEP)}
    for slot, stream in streams.items():
        start_in_slot(table, slot, stream)
        table.pages[slot] = 1
    assert len(table.in_use.talking) == 3 * VIEW_STEP // 2
    table.in_use.written[VIEW_STEP] = 3
    assert table.written[VIEW_STEP] == 3
    assert np.flatnonzero(table.in_use.pending).tolist() == [VIEW_STEP]
    assert np.flatnonzero(table.in_use.runnable).tolist() == list(streams)

    def close(slot: int) -> None:
        table.move(streams[slot], Status.ENDED)
        table.close(streams[slot])

    close(1)
    assert len(table.in_use.talking) == 3 * VIEW_STEP // 2
    close(VIEW_STEP)
    assert len(table.in_use.talking) == VIEW_STEP
    close(0)
    assert len(table.in_use.talking) == 0


def test_rejects_an_invalid_status_transition() -> None:
    table, stream = SlotTable(1, 16, NUM_CODEBOOKS), make_stream("0", Listener())
    with pytest.raises(AssertionError, match="a stream that is new cannot be draining"):
        table.move(stream, Status.DRAINING)


def test_integrity_check_finds_a_column_that_contradicts_a_status() -> None:
    table, stream = SlotTable(1, 16, NUM_CODEBOOKS), make_stream("0", Listener())
    start_in_slot(table, 0, stream)
    table.check_integrity()
    table.talking[0] = False
    with pytest.raises(AssertionError, match="talking flag disagrees with its stream's status"):
        table.check_integrity()
