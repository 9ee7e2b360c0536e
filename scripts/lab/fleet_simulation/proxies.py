"""Proxies that choose among servers with local knowledge only: the streams that each of them has outstanding.

The policies are Envoy's: LEAST_REQUEST with FULL_SCAN, which breaks ties at random, or with a choice count, which draws
so many servers with replacement, ROUND_ROBIN and RANDOM.
"""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NAMES = ("full-scan", "round-robin", "random")
_CHOICE = re.compile(r"choice-([1-9]\d*)")
# Above any number of outstanding streams.
_UNHEALTHY = 1 << 40


def check_policy(name: str) -> None:
    """Raises ValueError for a name that is none."""
    if name not in NAMES and not _CHOICE.fullmatch(name):
        raise ValueError(f"policy {name!r} is none of {', '.join(NAMES)}, choice-N")


class Proxies:
    """`hosts` [proxies, slots] are the servers that each proxy knows, in its own order."""

    def __init__(self, hosts: Ints, policy: str, rng: np.random.Generator) -> None:
        self.hosts = hosts
        self.outstanding = np.zeros(hosts.shape, np.int64)
        self.healthy = np.ones(hosts.shape, bool)
        self._rng = rng
        self._choose = self._policy(policy)
        self._next = rng.integers(0, hosts.shape[1], len(hosts))

    def choose(self, who: Ints) -> Ints:
        """A slot for one request of each of these proxies, which are different ones."""
        return self._choose(who)

    def eject(self, server: int) -> None:
        """No proxy chooses this server any more, unless it knows no other."""
        self.healthy &= self.hosts != server
        self.healthy |= ~self.healthy.any(axis=1, keepdims=True)

    def _policy(self, name: str) -> Callable[[Ints], Ints]:
        check_policy(name)
        if match := _CHOICE.fullmatch(name):
            return lambda who: self._least_of(who, int(match[1]))
        return {"full-scan": self._full_scan, "round-robin": self._round_robin, "random": self._random}[name]

    def _full_scan(self, who: Ints) -> Ints:
        outstanding = self.outstanding[who]
        ties = self._rng.integers(0, 1 << 16, outstanding.shape, np.uint16)
        keys = (outstanding << 16) + ties
        if not self.healthy.all():
            keys[~self.healthy[who]] += _UNHEALTHY
        chosen: Ints = keys.argmin(axis=1)
        return chosen

    def _least_of(self, who: Ints, count: int) -> Ints:
        drawn = np.stack([self._random(who) for _ in range(count)], axis=1)
        least = self.outstanding[who[:, None], drawn].argmin(axis=1)
        chosen: Ints = drawn[np.arange(len(who)), least]
        return chosen

    def _random(self, who: Ints) -> Ints:
        slots: Ints = self._rng.integers(0, self.hosts.shape[1], len(who))
        while (missed := ~self.healthy[who, slots]).any():
            slots[missed] = self._rng.integers(0, self.hosts.shape[1], int(missed.sum()))
        return slots

    def _round_robin(self, who: Ints) -> Ints:
        self._next[who] = (self._next[who] + 1) % self.hosts.shape[1]
        while (missed := ~self.healthy[who, self._next[who]]).any():
            self._next[who[missed]] = (self._next[who[missed]] + 1) % self.hosts.shape[1]
        chosen: Ints = self._next[who]
        return chosen


def all_servers(proxies: int, servers: int, rng: np.random.Generator) -> Ints:
    """Every proxy knows every server."""
    hosts: Ints = rng.permuted(np.tile(np.arange(servers), (proxies, 1)), axis=1)
    return hosts


def even_subsets(proxies: int, servers: int, size: int, rng: np.random.Generator) -> Ints:
    """[proxies, size]: groups of proxies share out a shuffled list of the servers, so that the proxies of each server
    differ in number by the last group, and by what a list leaves over, only."""
    per_round = servers // size
    rounds = range(-(-proxies // per_round))
    shared_out = [rng.permutation(servers)[: per_round * size].reshape(per_round, size) for _ in rounds]
    subsets: Ints = np.concatenate(shared_out)[:proxies]
    return subsets


def random_subsets(proxies: int, servers: int, size: int, rng: np.random.Generator) -> Ints:
    """[proxies, size]: each proxy draws its own."""
    subsets: Ints = all_servers(proxies, servers, rng)[:, :size]
    return subsets
