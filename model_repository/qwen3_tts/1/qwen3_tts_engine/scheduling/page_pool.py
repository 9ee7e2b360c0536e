"""Pages of the key/value cache with a prefix cache: prompts that begin alike share pages."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile


class PagePool:
    """Allocates pages and counts references to them.

    A page is cached under the hash of its contents and of all pages before it (core.streams.Prompt.prefix_hashes).
    Without references it stays cached until its memory is needed, least recently used first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size))
        self._references: dict[int, int] = {}
        self._cached: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        # Cached pages without references, the least recently used first.
        self._evictable: dict[int, None] = {}

    @property
    def num_free(self) -> int:
        """Pages that can be allocated."""
        return len(self._free) + len(self._evictable)

    @property
    def num_used(self) -> int:
        """Pages with references."""
        return len(self._references)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The cached pages of the longest prefix."""
        return [self._cached[found] for found in takewhile(self._cached.__contains__, hashes)]

    def share(self, pages: Sequence[int]) -> None:
        """Add a reference to cached pages."""
        for page in pages:
            self._evictable.pop(page, None)
            self._references[page] = self._references.get(page, 0) + 1

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` pages with one reference; raises IndexError, and allocates none, when fewer are free."""
        if count > self.num_free:
            raise IndexError(f"{count} requested, {self.num_free} free")
        while len(self._free) < count:
            self._evict(next(iter(self._evictable)))
        rest = len(self._free) - count
        pages = self._free[rest:]
        del self._free[rest:]
        self._references.update(dict.fromkeys(pages, 1))
        return pages

    def cache(self, hashes: Iterable[bytes], pages: Iterable[int]) -> None:
        """Cache pages whose contents are written; a hash that is cached already keeps its page."""
        for content, page in zip(hashes, pages, strict=False):
            if content not in self._cached and page not in self._hashes:
                self._cached[content], self._hashes[page] = page, content

    def free(self, pages: Sequence[int]) -> None:
        """Remove a reference; raises KeyError for a page without one."""
        # A page is useless without those before it: of these pages, the last is evicted first.
        for page in reversed(pages):
            count = self._references.pop(page) - 1
            if count:
                self._references[page] = count
            elif page in self._hashes:
                self._evictable[page] = None
            else:
                self._free.append(page)

    def num_freed_by(self, holders: Iterable[Sequence[int]]) -> int:
        """Pages that become free when each of `holders` frees its pages."""
        counts = Counter(chain.from_iterable(holders))
        return sum(count == self._references[page] for page, count in counts.items())

    def check_integrity(self, holders: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless `holders` have all references, and each page is free, evictable or referenced."""
        assert Counter(chain.from_iterable(holders)) == self._references, "a page has other references than its holders"
        pages = sorted(chain(self._free, self._evictable, self._references))
        assert pages == list(range(self.size)), "a page is lost, or both free and in use"
        assert self._evictable.keys() <= self._hashes.keys(), "an evictable page is not cached"
        assert {page: content for content, page in self._cached.items()} == self._hashes, "hashes and pages disagree"

    def _evict(self, page: int) -> None:
        del self._evictable[page]
        del self._cached[self._hashes.pop(page)]
        self._free.append(page)
