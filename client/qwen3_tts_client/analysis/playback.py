"""Simulated playback of a stream, in integer nanoseconds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NS = 1_000_000_000
MS = 1_000_000


@dataclass(frozen=True)
class Playback:
    starts_ns: tuple[int, ...]  # when each chunk begins to play
    stalls_ns: tuple[int, ...]  # how late each chunk is, for a player that waits for it
    lateness_ns: int  # the largest lateness, for a player that never waits: its deadlines do not move

    @property
    def largest_stall_ns(self) -> int:
        return max(self.stalls_ns, default=0)

    @property
    def stalled_ns(self) -> int:
        return sum(self.stalls_ns)

    @property
    def underruns(self) -> int:
        return sum(stall > 0 for stall in self.stalls_ns)


def play(arrivals_ns: Sequence[int], samples: Sequence[int], sample_rate: int, prebuffer_ns: int = 0) -> Playback:
    """Plays chunks of `samples[i]` samples that arrive at `arrivals_ns[i]`.

    The player starts at the first arrival + prebuffer; then deadline = max(deadline, arrival) + duration, and the
    stall of a chunk is max(0, arrival - deadline). Without rebuffering, deadline = start + all audio before the chunk.
    """
    if not arrivals_ns:
        return Playback((), (), 0)
    start_ns = arrivals_ns[0] + prebuffer_ns
    starts, stalls, lateness = [], [], 0
    # The deadline is kept as resumption + audio since then, so that rounding errors do not accumulate.
    resumed_ns, resumed_samples, total_samples = start_ns, 0, 0
    for arrival_ns, count in zip(arrivals_ns, samples, strict=True):
        deadline_ns = resumed_ns + duration_ns(resumed_samples, sample_rate)
        if arrival_ns > deadline_ns:
            resumed_ns, resumed_samples = arrival_ns, 0
        starts.append(max(arrival_ns, deadline_ns))
        stalls.append(max(0, arrival_ns - deadline_ns))
        lateness = max(lateness, arrival_ns - start_ns - duration_ns(total_samples, sample_rate))
        resumed_samples += count
        total_samples += count
    return Playback(tuple(starts), tuple(stalls), lateness)


def duration_ns(samples: int, sample_rate: int) -> int:
    return samples * NS // sample_rate


def share_within(worst_ns: Iterable[int], limit_ns: int) -> float | None:
    """Share of streams whose worst stall is at most `limit_ns`; C50 is share_within(largest stalls, 50 ms)."""
    within = [worst <= limit_ns for worst in worst_ns]
    return sum(within) / len(within) if within else None
