"""Pools hand out each index once."""

import pytest

from qwen3_tts_engine.slots import Pool


def test_lowest_indices_first() -> None:
    pool = Pool(4)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([1])
    assert pool.allocate(2) == [1, 3]
    pool.check_integrity()


def test_nothing_is_taken_when_too_few_are_free() -> None:
    pool = Pool(2)
    pool.allocate(1)
    with pytest.raises(IndexError):
        pool.allocate(2)
    assert (pool.num_free, pool.num_used) == (1, 1)
    pool.check_integrity()


def test_double_free_is_an_error() -> None:
    pool = Pool(2)
    taken = pool.allocate(1)
    pool.free(taken)
    with pytest.raises(KeyError):
        pool.free(taken)
    pool.check_integrity()
