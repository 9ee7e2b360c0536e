"""Pages of the key/value cache, which streams whose prompts begin alike share."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile

from qwen3_tts_engine.scheduling.slot_table import Pool


class PagePool:
    """Allocates pages. A page with a key stays known after its last holder freed it, until its memory is needed.

    A key stands for the contents of a page and of all pages before it (core.streams.Prompt.page_keys).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = Pool(size)
        self._holders: Counter[int] = Counter()
        self._pages: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        # Pages without a holder, the least recently used first.
        self._idle: dict[int, None] = {}

    @property
    def num_free(self) -> int:
        """Pages that can be allocated."""
        return self._pool.num_free + len(self._idle)

    @property
    def num_used(self) -> int:
        """Pages that streams hold."""
        return len(self._holders)

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The known pages of a prompt, from its first page on."""
        return [self._pages[key] for key in takewhile(self._pages.__contains__, keys)]

    def hold(self, pages: Sequence[int]) -> None:
        """Add a holder to known pages."""
        for page in pages:
            self._idle.pop(page, None)
            self._holders[page] += 1

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` pages for one holder; raises IndexError, and allocates none, when fewer are free."""
        if count > self.num_free:
            raise IndexError(f"{count} requested, {self.num_free} free")
        while self._pool.num_free < count:
            self._forget(next(iter(self._idle)))
        pages = self._pool.allocate(count)
        self._holders.update(pages)
        return pages

    def remember(self, keys: Iterable[bytes], pages: Iterable[int]) -> None:
        """Give held pages their keys, once their contents are written; a key that another page has stays there."""
        for key, page in zip(keys, pages, strict=False):
            if key not in self._pages and page not in self._keys:
                self._pages[key], self._keys[page] = page, key

    def free(self, pages: Sequence[int]) -> None:
        """Remove a holder; raises KeyError for a page that has none."""
        # A page without those before it is useless, so the last one is to be forgotten first.
        for page in reversed(pages):
            if page not in self._holders:
                raise KeyError(page)
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if page in self._keys:
                self._idle[page] = None
            else:
                self._pool.free([page])

    def num_freed(self, holders: Iterable[Sequence[int]]) -> int:
        """Pages that are free once all these holders have freed theirs."""
        counts = Counter(chain.from_iterable(holders))
        return sum(count == self._holders[page] for page, count in counts.items())

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless these are all holders, and every page is free, idle or held."""
        self._pool.check_integrity()
        assert Counter(chain.from_iterable(holders)) == self._holders, "a page is held by no stream, or by another one"
        assert self._idle.keys().isdisjoint(self._holders), "a page is idle and held"
        assert len(self._idle) + len(self._holders) == self._pool.num_used, "a page is lost"
        assert self._idle.keys() <= self._keys.keys(), "an idle page has no key"
        assert {page: key for key, page in self._pages.items()} == self._keys, "keys and pages disagree"

    def _forget(self, page: int) -> None:
        del self._idle[page]
        del self._pages[self._keys.pop(page)]
        self._pool.free([page])
