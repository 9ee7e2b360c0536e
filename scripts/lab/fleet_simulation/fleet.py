"""Streams of a fleet in virtual time: steps in which running streams advance, end and arrive."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scripts.lab.fleet_simulation.proxies import Ints, Proxies, all_servers, even_subsets, random_subsets
from scripts.lab.fleet_simulation.server_curve import Array, ServerCurve


@dataclass(frozen=True)
class Scenario:
    """Load is `rate` or `callers`. Times in seconds of virtual time."""

    servers: int = 1
    proxies: int = 1
    policy: str = "full-scan"
    subset: int = 0
    """Servers that each proxy knows; 0 for all."""
    random_subsets: bool = False
    """Whether each proxy draws its own subset, instead of even ones."""
    rate: float = 0.0
    """Poisson requests a second for each server, spread evenly over the proxies."""
    callers: int = 0
    """Closed loops for each server, spread evenly over the proxies."""
    audio_seconds: float = 5.68
    length_deviation: float = 0.0
    """Standard deviation of a request's audio seconds over their mean (gamma distribution)."""
    slow: int = 0
    """Servers whose streams take `slowness` times as long."""
    slowness: float = 2.0
    lost: int = 0
    """Servers that die at the start of the measured time."""
    detected: float = 1.0
    """Time from their death until no proxy chooses them."""
    warm_up: float = 3.0
    seconds: float = 2.0
    step: float = 0.002
    seed: int = 0


@dataclass(frozen=True)
class Figures:
    """Figures of the measured time."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    audio_rate: float
    """Seconds of audio made a second, of all servers."""
    streams: float
    """Mean of the running streams of a server that is alive."""
    deviation: float
    """Standard deviation of the servers' running streams over their mean, averaged over time."""
    busiest: float
    """Running streams of the busiest server over the mean, averaged over time."""
    failed: float
    """Share of requests that ended with, or were sent to, a dead server."""
    beyond: float
    """Share of requests sent to a server beyond the record's largest closed loop: their times are too short."""


@dataclass
class Samples:
    first_audio_ms: list[Array] = field(default_factory=list)
    audio_seconds: float = 0.0
    streams: list[float] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)
    busiest: list[float] = field(default_factory=list)
    requests: int = 0
    failed: int = 0
    beyond: int = 0

    def figures(self, seconds: float) -> Figures:
        p50, p95, p99 = map(float, np.percentile(np.concatenate(self.first_audio_ms), (50, 95, 99)))
        means = [float(np.mean(values)) for values in (self.streams, self.deviations, self.busiest)]
        shares = [count / max(self.requests, 1) for count in (self.failed, self.beyond)]
        return Figures(p50, p95, p99, self.audio_seconds / seconds, *means, *shares)


class SimulatedFleet:
    def __init__(self, scenario: Scenario, curve: ServerCurve) -> None:
        self.scenario, self.curve = scenario, curve
        self._rng = np.random.default_rng(scenario.seed)
        self._proxies = Proxies(self._hosts(), scenario.policy, self._rng)
        self._alive = np.ones(scenario.servers, bool)
        # The last ones: the first ones may die.
        self._slowness = np.where(
            np.arange(scenario.servers) < scenario.servers - scenario.slow, 1.0, scenario.slowness
        )
        # Running streams of each server, then one element for each running stream: its place in
        # `Proxies.outstanding` (flat), its server, and the seconds of audio that remain to be made.
        self._running = np.zeros(scenario.servers, np.int64)
        self._places = np.zeros(0, np.int64)
        self._servers = np.zeros(0, np.int64)
        self._remaining = np.zeros(0)
        self._idle_callers = self._spread_callers()
        self._samples = Samples()

    def run(self) -> Figures:
        scenario = self.scenario
        self._advance()
        # The first requests of closed loops shall not end together.
        self._remaining *= self._rng.random(len(self._remaining))
        for _ in range(round(scenario.warm_up / scenario.step)):
            self._advance()
        self._samples = Samples()
        self._lose()
        detection = round(scenario.detected / scenario.step)
        for number in range(round(scenario.seconds / scenario.step)):
            if number == detection:
                self._eject()
            self._advance()
            self._sample()
        return self._samples.figures(scenario.seconds)

    def check_integrity(self) -> None:
        """Proxies, servers and streams have the same numbers, and no stream or caller is lost."""
        servers, callers = self.scenario.servers, self.scenario.callers * self.scenario.servers
        outstanding = np.bincount(self._proxies.hosts.reshape(-1), self._proxies.outstanding.reshape(-1), servers)
        assert (outstanding == self._running).all()
        assert (np.bincount(self._servers, minlength=servers) == self._running).all()
        assert not self._running[~self._alive].any()
        assert not callers or self._running.sum() + self._idle_callers.sum() == callers

    def _hosts(self) -> Ints:
        known = self.scenario
        if not known.subset:
            return all_servers(known.proxies, known.servers, self._rng)
        subsets = random_subsets if known.random_subsets else even_subsets
        return subsets(known.proxies, known.servers, known.subset, self._rng)

    def _spread_callers(self) -> Ints:
        callers = self.scenario.callers * self.scenario.servers
        spread: Ints = np.bincount(np.arange(callers) % self.scenario.proxies, minlength=self.scenario.proxies)
        return spread

    def _advance(self) -> None:
        speeds = self.curve.speeds(self._running) / self._slowness
        made = speeds[self._servers] * self.scenario.step
        self._samples.audio_seconds += float(np.minimum(made, self._remaining).sum())
        self._remaining -= made
        self._end(self._remaining <= 0)
        self._arrive(self._arrivals())

    def _end(self, ended: NDArray[np.bool_]) -> None:
        """Removes these streams; their callers become idle."""
        places = self._places[ended]
        np.subtract.at(self._proxies.outstanding.reshape(-1), places, 1)
        self._running -= np.bincount(self._servers[ended], minlength=self.scenario.servers)
        if self.scenario.callers:
            self._callers_of(places // self._proxies.hosts.shape[1])
        running = ~ended
        self._places, self._servers = self._places[running], self._servers[running]
        self._remaining = self._remaining[running]

    def _callers_of(self, proxies: Ints) -> None:
        self._idle_callers += np.bincount(proxies, minlength=self.scenario.proxies)

    def _arrivals(self) -> Ints:
        """New requests of each proxy in a step."""
        if self.scenario.callers:
            arrivals, self._idle_callers = self._idle_callers, np.zeros_like(self._idle_callers)
            return arrivals
        each = self.scenario.rate * self.scenario.servers / self.scenario.proxies
        drawn: Ints = self._rng.poisson(each * self.scenario.step, self.scenario.proxies)
        return drawn

    def _arrive(self, arrivals: Ints) -> None:
        """One request of each proxy after the other: each choice sees the proxy's earlier ones."""
        rounds = [np.flatnonzero(arrivals > number) for number in range(arrivals.max(initial=0))]
        placed = [self._choose(who) for who in rounds]
        if placed:
            places = np.concatenate(placed)
            self._places = np.concatenate([self._places, places])
            self._servers = np.concatenate([self._servers, self._proxies.hosts.reshape(-1)[places]])
            self._remaining = np.concatenate([self._remaining, self._lengths(len(places))])

    def _choose(self, who: Ints) -> Ints:
        """Sends one request of each of these proxies; the places of those that reach a server."""
        slots = self._proxies.choose(who)
        servers = self._proxies.hosts[who, slots]
        reached = self._alive[servers]
        if self.scenario.callers and not reached.all():
            self._callers_of(who[~reached])
        who, slots, servers = who[reached], slots[reached], servers[reached]
        self._proxies.outstanding[who, slots] += 1
        self._running += np.bincount(servers, minlength=self.scenario.servers)
        streams = self._running[servers]
        samples = self._samples
        samples.first_audio_ms.append(self._slowness[servers] * self.curve.first_audio_ms(streams, self._rng))
        samples.requests += len(reached)
        samples.failed += len(reached) - len(who)
        samples.beyond += int((streams > self.curve.largest).sum())
        places: Ints = who * self._proxies.hosts.shape[1] + slots
        return places

    def _lengths(self, number: int) -> Array:
        mean, deviation = self.scenario.audio_seconds, self.scenario.length_deviation
        if not deviation:
            return np.full(number, mean)
        drawn: Array = self._rng.gamma(deviation**-2, mean * deviation**2, number)
        return drawn

    def _lose(self) -> None:
        self._alive[: self.scenario.lost] = False
        broken = ~self._alive[self._servers]
        self._samples.failed += int(broken.sum())
        self._end(broken)

    def _eject(self) -> None:
        for server in np.flatnonzero(~self._alive):
            self._proxies.eject(int(server))

    def _sample(self) -> None:
        running = self._running[self._alive]
        mean = max(float(running.mean()), 1e-9)
        self._samples.streams.append(mean)
        self._samples.deviations.append(float(running.std()) / mean)
        self._samples.busiest.append(float(running.max()) / mean)
