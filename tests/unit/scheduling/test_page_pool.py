"""Cached pages are found as long as their memory is not needed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_engine.scheduling.page_pool import PagePool

A, B, C = (name.encode() for name in "abc")


def test_a_prompt_finds_the_longest_cached_prefix() -> None:
    pool = PagePool(8)
    first = pool.allocate(4)
    pool.cache([A, B], first)
    assert pool.match([A, B, C]) == first[:2]
    assert pool.match([A, C]) == first[:1]
    assert pool.match([C, B]) == [], "a page counts only after those before it"
    pool.share(first[:2])
    pool.free(first)
    assert (pool.num_used, pool.num_free) == (2, 6)
    pool.free(first[:2])
    assert (pool.num_used, pool.num_free) == (0, 8)
    assert pool.match([A, B]) == first[:2], "pages without references are still cached"
    pool.check_integrity([])


def test_memory_is_taken_from_the_least_recently_used_pages_last_page_first() -> None:
    pool = PagePool(4)
    old, new = pool.allocate(2), pool.allocate(2)
    pool.cache([A, B], old)
    pool.cache([C], new)
    pool.free(old)
    pool.free(new)
    assert pool.allocate(1) == new[1:], "a page that is not cached first"
    pool.allocate(1)
    assert pool.match([A, B]) == old[:1]
    pool.allocate(1)
    assert (pool.match([A]), pool.match([C])) == ([], new[:1])
    with pytest.raises(IndexError, match="2 requested, 1 free"):
        pool.allocate(2)
    assert pool.match([C]) == new[:1], "nothing was evicted for what cannot be had"


def test_a_hash_stays_with_its_first_page() -> None:
    pool = PagePool(4)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.cache([A], first)
    pool.cache([A], second)
    pool.cache([B], first)
    assert (pool.match([A]), pool.match([B])) == (first, [])
    pool.free(second)
    pool.check_integrity([first])


def test_only_referenced_pages_are_freed() -> None:
    pool = PagePool(2)
    pages = pool.allocate(1)
    pool.free(pages)
    with pytest.raises(KeyError):
        pool.free(pages)


def test_pages_are_free_after_their_last_reference() -> None:
    pool = PagePool(4)
    first = pool.allocate(2)
    pool.cache([A], first)
    pool.share(first[:1])
    second = [*first[:1], *pool.allocate(1)]
    assert (pool.num_freed_by([first]), pool.num_freed_by([second]), pool.num_freed_by([first, second])) == (1, 1, 3)


@given(st.integers(0, 1 << 30), st.integers(1, 12))
def test_no_page_is_lost_and_no_cached_page_has_other_contents(seed: int, size: int) -> None:
    """Random prompts of up to four voices; `contents` is what the memory would hold."""
    chance = random.Random(seed)
    pool, held = PagePool(size), list[list[int]]()
    contents: dict[int, bytes] = {}
    for _ in range(80):
        hashes = [f"{chance.randint(0, 3)} {i}".encode() for i in range(chance.randint(0, 3))]
        found = pool.match(hashes)
        assert [contents[page] for page in found] == hashes[: len(found)]
        count = len(hashes) - len(found) + chance.randint(1, 2)
        # Evictable pages count as free, and are shared here.
        if count + len(found) <= pool.num_free:
            pool.share(found)
            pages = [*found, *pool.allocate(count)]
            contents |= dict.fromkeys(pages[len(found) :], b"")
            contents |= dict(zip(pages, hashes, strict=False))
            if chance.random() < 0.8:  # else its prefill failed
                pool.cache(hashes, pages)
            held.append(pages)
        elif held:
            before = pool.num_free
            leaving = [held.pop(chance.randrange(len(held))) for _ in range(chance.randint(1, len(held)))]
            expected = pool.num_freed_by(leaving)
            for pages in leaving:
                pool.free(pages)
            assert pool.num_free == before + expected
        pool.check_integrity(held)
