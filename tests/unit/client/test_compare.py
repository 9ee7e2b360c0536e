import re

import numpy as np
import pytest

from qwen3_tts_client.analysis.compare import (
    FIGURES,
    RESAMPLES,
    Observations,
    bootstrap,
    common_loads,
    compare_load,
)
from qwen3_tts_client.analysis.playback import MS, NS
from qwen3_tts_client.records.record import LoadRecord, RequestRecord, Run
from qwen3_tts_client.records.timeline import Timeline

FRAME = 1920


def run(seed: int, ttfa_ms: float, seconds: int = 30, loads: tuple[float, ...] = (8,), stall_ms: float = 0) -> Run:
    """Ten streams a second; TTFA has mean `ttfa_ms` and a standard deviation of a tenth of it."""
    rng = np.random.default_rng(seed)
    made = Run({}, [LoadRecord(n, "closed", value, 0, seconds * NS, seconds * NS) for n, value in enumerate(loads)])
    for load in made.loads:
        for index in range(10 * seconds):
            sent = index * NS // 10
            first = sent + round(rng.normal(ttfa_ms, ttfa_ms / 10) * MS)
            arrivals = [first, first + round((80 + stall_ms) * MS)]
            timeline = Timeline(sent, None, arrivals, [FRAME] * 2, 24_000, 0, arrivals[1], "ok")
            made.requests.append(RequestRecord(load.id, index, "measure", 0, "p", None, 9, timeline))
    return made


def verdicts(a: list[Run], b: list[Run]) -> dict[str, str]:
    lines = list(compare_load([a, b], ("closed", 8), 0, np.random.default_rng(0)))
    return {line[1]: line[-1] for line in lines}


def test_equal_runs_differ_only_by_noise() -> None:
    assert set(verdicts([run(1, 50)], [run(2, 50)]).values()) == {"noise"}


def test_reports_a_real_difference() -> None:
    found = verdicts([run(1, 50)], [run(2, 55, stall_ms=60)])
    assert found["TTFA p50 ms"] == "higher"
    assert found["C50 %"] == "lower"
    assert found["underrun %"] == "higher"
    assert found["RTF p50"] == "higher"
    assert found["errors %"] == "noise"


def test_variance_between_runs_widens_the_interval() -> None:
    a, b = [run(1, 50), run(2, 60), run(3, 55)], [run(4, 56), run(5, 66), run(6, 50)]
    assert verdicts(a[:1], b[:1])["TTFA p50 ms"] == "higher"
    assert verdicts(a, b)["TTFA p50 ms"] == "noise"


def test_reports_a_run_too_short_to_compare() -> None:
    assert set(verdicts([run(1, 50, seconds=4)], [run(2, 90)]).values()) == {"too short to tell"}


def test_compares_only_common_loads() -> None:
    runs = [run(1, 50, 1, (1, 8, 16)), run(1, 50, 1, (8, 16, 64))]
    assert common_loads([[runs[0]], [runs[1]]]) == [("closed", 8), ("closed", 16)]


def test_bootstrap_resamples_whole_seconds() -> None:
    # Two blocks, all 0 and all 1: the mean of a resample is exactly 0, 1/2 or 1.
    seen = Observations(np.repeat([0.0, 1.0], 50), np.repeat([0, 1], 50), 2)
    means = bootstrap(
        [seen], lambda values, weights: (weights @ values) / weights.sum(axis=1), np.random.default_rng(0)
    )
    assert set(means) == {0.0, 0.5, 1.0}
    assert (means == 0.5).sum() / RESAMPLES == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("figure", [name for name in FIGURES if re.search(r" p\d", name)])
def test_a_percentile_is_the_one_that_its_figure_names(figure: str) -> None:
    _, statistic = FIGURES[figure]
    [percent] = re.findall(r" p(\d+)", figure)
    values = np.random.default_rng(0).permutation(np.arange(1.0, 101.0))
    assert statistic(values, np.ones((1, 100))).tolist() == [float(percent)]
