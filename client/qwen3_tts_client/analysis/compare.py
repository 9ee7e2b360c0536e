"""`qwen3-tts compare`: compares two records, with bootstrap intervals of their differences."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client import options
from qwen3_tts_client.analysis import metrics
from qwen3_tts_client.analysis.playback import MS, NS
from qwen3_tts_client.analysis.summary import measured
from qwen3_tts_client.analysis.table import aligned, load_name
from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.records.record import LoadRecord, Run, read_run
from qwen3_tts_client.records.timeline import Timeline

Array = NDArray[np.float64]
Statistic = Callable[[Array, Array], Array]  # values [n], weights [resamples, n] -> [resamples]
LoadKey = tuple[str, float]  # mode, value

RESAMPLES = 2000
CONFIDENCE = 0.95
# Concurrent streams are late together, so the bootstrap resamples whole seconds, not single streams.
BLOCK_NS = NS
MIN_BLOCKS = 5
_NOTE = """B - A with its 95 % bootstrap interval; a difference whose interval contains zero is noise.
Seconds are resampled within each run, and runs within each side. With one run per side the interval excludes
run-to-run variation: pass several runs of the same configuration as A1,A2,A3 before trusting a small difference.
One in twenty noise-only lines is reported as a difference."""


def _percentile(q: float) -> Statistic:
    """Nearest rank, as in metrics.percentiles."""

    def statistic(values: Array, weights: Array) -> Array:
        order = np.argsort(values)
        below = np.cumsum(weights[:, order], axis=1)
        at: Array = values[order][(below < q / 100 * below[:, -1:]).sum(axis=1)]
        return at

    return statistic


def _mean(values: Array, weights: Array) -> Array:
    mean: Array = (weights @ values) / weights.sum(axis=1)
    return mean


def _percent(condition: Callable[[Array], NDArray[np.bool_]]) -> Statistic:
    return lambda values, weights: 100 * _mean(condition(values).astype(np.float64), weights)


# Figure name to its observations and statistic.
FIGURES: dict[str, tuple[str, Statistic]] = {
    "TTFA p50 ms": ("ttfa_ms", _percentile(50)),
    "TTFA p95 ms": ("ttfa_ms", _percentile(95)),
    "audible p50 ms": ("audible_ttfa_ms", _percentile(50)),
    "audible p95 ms": ("audible_ttfa_ms", _percentile(95)),
    "E2E p50 ms": ("e2el_ms", _percentile(50)),
    "RTF p50": ("rtf", _percentile(50)),
    "stall p95 ms": ("stall_ms", _percentile(95)),
    "C50 %": ("stall_ms", _percent(lambda stalls: stalls <= 50)),
    "underrun %": ("stall_ms", _percent(lambda stalls: stalls > 0)),
    "audio-s/s": ("audio_s", _mean),
    "errors %": ("failed", _percent(lambda failed: failed > 0)),
}


@dataclass(frozen=True)
class Observations:
    values: Array
    blocks: NDArray[np.int64]  # of each value: its second, in 0 .. block_count - 1
    block_count: int


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=_paths, metavar="A", help="record folder, or several separated by commas")
    parser.add_argument("b", type=_paths, metavar="B")
    options.add_playback_options(parser)
    parser.add_argument("--random-seed", type=int, default=0, help="for the bootstrap")


def run(args: argparse.Namespace) -> ExitCode:
    sides = [[read_run(path) for path in paths] for paths in (args.a, args.b)]
    prebuffer_ns = round(args.prebuffer_ms * MS)
    rng = np.random.default_rng(args.random_seed)
    lines = [line for key in common_loads(sides) for line in compare_load(sides, key, prebuffer_ns, rng)]
    if not lines:
        raise ClientError("the records have no load in common; measure both with the same loads")
    print(aligned([["load", "figure", "A", "B", "B - A", "95 % interval", ""], *lines]))
    print(_NOTE)
    return ExitCode.OK


def common_loads(sides: Sequence[Sequence[Run]]) -> list[LoadKey]:
    """Loads present in every run, in the order of the first."""
    keys = [[(load.mode, load.value) for load in run.loads] for side in sides for run in side]
    return [key for key in keys[0] if all(key in others for others in keys)]


def compare_load(
    sides: Sequence[Sequence[Run]], key: LoadKey, prebuffer_ns: int, rng: np.random.Generator
) -> Iterator[list[str]]:
    """One table row per figure that both sides have."""
    a, b = ([observe(run, key, prebuffer_ns) for run in side] for side in sides)
    for name, (of, statistic) in FIGURES.items():
        runs_a, runs_b = [seen[of] for seen in a], [seen[of] for seen in b]
        if all(len(seen.values) for seen in (*runs_a, *runs_b)):
            yield [load_name(*key), name, *_compare(runs_a, runs_b, statistic, rng)]


def observe(run: Run, key: LoadKey, prebuffer_ns: int) -> dict[str, Observations]:
    """A run's observations of a load: one per successful stream, request (`failed`) or second (`audio_s`)."""
    load = next(load for load in run.loads if (load.mode, load.value) == key)
    requests = measured(run, load)
    ok = [timeline for timeline in requests if timeline.outcome == "ok"]
    playbacks = [metrics.played(timeline, prebuffer_ns) for timeline in ok]
    several = [len(playback.starts_ns) > 1 for playback in playbacks]
    stalls = (playback.largest_stall_ns if many else None for playback, many in zip(playbacks, several, strict=True))
    return {
        "ttfa_ms": _observations(ok, map(metrics.ttfa_ns, ok), MS),
        "audible_ttfa_ms": _observations(ok, map(metrics.audible_ttfa_ns, ok, playbacks), MS),
        "e2el_ms": _observations(ok, map(metrics.e2el_ns, ok), MS),
        "rtf": _observations(ok, map(metrics.rtf, ok)),
        "stall_ms": _observations(ok, stalls, MS),
        "failed": _observations(requests, (timeline.outcome != "ok" for timeline in requests)),
        "audio_s": _audio_of_each_second(load, [record.timeline for record in run.requests if record.load == load.id]),
    }


def bootstrap(runs: Sequence[Observations], statistic: Statistic, rng: np.random.Generator) -> Array:
    """RESAMPLES values of the statistic: runs are resampled, and blocks within them."""
    times_drawn = rng.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), size=RESAMPLES)
    weights = [
        rng.multinomial(times * run.block_count, np.full(run.block_count, 1 / run.block_count))[:, run.blocks]
        for times, run in zip(times_drawn.T, runs, strict=True)
    ]
    return statistic(np.concatenate([run.values for run in runs]), np.hstack(weights).astype(np.float64))


def _compare(
    runs_a: Sequence[Observations], runs_b: Sequence[Observations], statistic: Statistic, rng: np.random.Generator
) -> list[str]:
    a, b = (_point_estimate(runs, statistic) for runs in (runs_a, runs_b))
    if min(sum(run.block_count for run in runs) for runs in (runs_a, runs_b)) < MIN_BLOCKS:
        return [*(f"{value:.4g}" for value in (a, b, b - a)), "", "too short to tell"]
    differences = bootstrap(runs_b, statistic, rng) - bootstrap(runs_a, statistic, rng)
    low, high = np.percentile(differences, (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)))
    verdict = "noise" if low <= 0 <= high else "higher" if low > 0 else "lower"
    return [*(f"{value:.4g}" for value in (a, b, b - a)), f"{low:.4g} .. {high:.4g}", verdict]


def _point_estimate(runs: Sequence[Observations], statistic: Statistic) -> float:
    values = np.concatenate([run.values for run in runs])
    return float(statistic(values, np.ones((1, len(values))))[0])


def _observations(timelines: Sequence[Timeline], values: Iterable[float | None], scale: float = 1) -> Observations:
    known = [(value, t.sent_ns // BLOCK_NS) for value, t in zip(values, timelines, strict=True) if value is not None]
    seconds, blocks = np.unique([second for _, second in known], return_inverse=True)
    return Observations(np.array([value for value, _ in known], np.float64) / scale, blocks, len(seconds))


def _audio_of_each_second(load: LoadRecord, timelines: Sequence[Timeline]) -> Observations:
    arrivals_ns, audio_s = metrics.audio_arrivals(timelines)
    edges = np.arange(load.start_ns, load.stop_ns + 1, BLOCK_NS)
    values = np.histogram(arrivals_ns, edges, weights=audio_s)[0]
    return Observations(values, np.arange(len(values)), len(values))


def _paths(text: str) -> list[Path]:
    return [Path(part) for part in text.split(",")]
