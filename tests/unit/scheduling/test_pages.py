"""Pages with keys are found as long as their memory is not needed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_engine.scheduling.pages import PagePool

A, B, C = (name.encode() for name in "abc")


def test_a_prompt_finds_the_pages_that_begin_alike() -> None:
    pool = PagePool(8)
    first = pool.allocate(4)
    pool.remember([A, B], first)
    assert pool.find([A, B, C]) == first[:2]
    assert pool.find([A, C]) == first[:1]
    assert pool.find([C, B]) == [], "a page counts only after those before it"
    pool.hold(first[:2])
    pool.free(first)
    assert (pool.num_used, pool.num_free) == (2, 6)
    pool.free(first[:2])
    assert (pool.num_used, pool.num_free) == (0, 8)
    assert pool.find([A, B]) == first[:2], "pages without a holder are still known"
    pool.check_integrity([])


def test_memory_is_taken_from_the_least_recently_used_pages_last_page_first() -> None:
    pool = PagePool(4)
    old, new = pool.allocate(2), pool.allocate(2)
    pool.remember([A, B], old)
    pool.remember([C], new)
    pool.free(old)
    pool.free(new)
    assert pool.allocate(1) == new[1:], "a page without a key first"
    pool.allocate(1)
    assert pool.find([A, B]) == old[:1]
    pool.allocate(1)
    assert (pool.find([A]), pool.find([C])) == ([], new[:1])
    with pytest.raises(IndexError, match="2 requested, 1 free"):
        pool.allocate(2)
    assert pool.find([C]) == new[:1], "nothing was forgotten for what cannot be had"


def test_a_key_stays_with_the_first_page_that_has_it() -> None:
    pool = PagePool(4)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.remember([A], first)
    pool.remember([A], second)
    pool.remember([B], first)
    assert (pool.find([A]), pool.find([B])) == (first, [])
    pool.free(second)
    pool.check_integrity([first])


def test_only_holders_free_pages() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.free(pages)
    with pytest.raises(KeyError):
        pool.free(pages)


def test_pages_are_free_when_all_their_holders_freed_them() -> None:
    pool = PagePool(4)
    first = pool.allocate(2)
    pool.remember([A], first)
    pool.hold(first[:1])
    second = [*first[:1], *pool.allocate(1)]
    assert (pool.num_freed([first]), pool.num_freed([second]), pool.num_freed([first, second])) == (1, 1, 3)


@given(st.integers(0, 1 << 30), st.integers(1, 12))
def test_no_page_is_lost_and_no_known_page_has_other_contents(seed: int, size: int) -> None:
    """Random prompts of up to four voices; `contents` is what the memory would hold."""
    chance = random.Random(seed)
    pool, held, contents = PagePool(size), [], {}
    for _ in range(80):
        keys = [f"{chance.randint(0, 3)} {i}".encode() for i in range(chance.randint(0, 3))]
        found = pool.find(keys)
        assert [contents[page] for page in found] == keys[: len(found)]
        count = len(keys) - len(found) + chance.randint(1, 2)
        # Pages that are only known are free as well, and are held here.
        if count + len(found) <= pool.num_free:
            pool.hold(found)
            pages = [*found, *pool.allocate(count)]
            contents |= dict.fromkeys(pages[len(found) :], b"")
            contents |= dict(zip(pages, keys, strict=False))
            if chance.random() < 0.8:  # else its prefill failed
                pool.remember(keys, pages)
            held.append(pages)
        elif held:
            before = pool.num_free
            leaving = [held.pop(chance.randrange(len(held))) for _ in range(chance.randint(1, len(held)))]
            expected = pool.num_freed(leaving)
            for pages in leaving:
                pool.free(pages)
            assert pool.num_free == before + expected
        pool.check_integrity(held)
