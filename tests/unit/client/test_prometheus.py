import pytest

from qwen3_tts_client.records.prometheus import parse, quantile_between, scrape, total

TEXT = """# HELP tick_seconds One tick
# TYPE tick_seconds histogram
tick_seconds_bucket{model="m",version="1",le="0.01"} 4
tick_seconds_bucket{model="m",version="1",le="0.02"} 8
tick_seconds_bucket{model="m",version="1",le="+Inf"} 10
tick_seconds_sum{model="m",version="1"} 0.5
tick_seconds_count{model="m",version="1"} 10
# TYPE running gauge
running{model="m",version="1"} 3
# TYPE frames_total counter
frames_total{model="a b}c",version="1"} 1.5e+03
plain 7 1700000000000
"""


def test_parses_samples_with_their_labels() -> None:
    samples = parse(TEXT)
    assert samples['running{model="m",version="1"}'] == 3
    assert samples['frames_total{model="a b}c",version="1"}'] == 1500
    assert samples["plain"] == 7
    assert len(samples) == 8


def test_parses_one_metric_type_only() -> None:
    assert parse(TEXT, "gauge") == {'running{model="m",version="1"}': 3}


def buckets(*counts: float, model: str = "m") -> dict[str, float]:
    bounds = ("0.01", "0.02", "+Inf")
    return {f'tick_seconds_bucket{{model="{model}",le="{b}"}}': c for b, c in zip(bounds, counts, strict=True)}


def test_quantile_interpolates_linearly_within_a_bucket() -> None:
    # 4 in 0..10 ms, 4 in 10..20 ms, 2 above.
    assert quantile_between({}, parse(TEXT), "tick_seconds", 0.2) == pytest.approx(0.005)
    assert quantile_between({}, parse(TEXT), "tick_seconds", 0.5) == pytest.approx(0.0125)
    assert quantile_between({}, parse(TEXT), "tick_seconds", 0.99) == 0.02


def test_total_sums_over_all_labels() -> None:
    samples = {'a{version="1"}': 1.0, 'a{version="2"}': 2.0, "ab": 5.0}
    assert (total(samples, "a"), total(samples, "ab"), total(samples, "b")) == (3, 5, None)


def test_quantile_counts_only_observations_between_the_scrapes() -> None:
    before, after = buckets(100, 100, 100), buckets(100, 110, 110)
    assert quantile_between(before, after, "tick_seconds", 0.5) == pytest.approx(0.015)
    assert quantile_between(after, after, "tick_seconds", 0.5) is None
    assert quantile_between({}, {}, "tick_seconds", 0.5) is None


def test_quantile_sums_buckets_over_all_labels() -> None:
    both = buckets(2, 2, 2) | buckets(0, 2, 2, model="other")
    assert quantile_between({}, both, "tick_seconds", 0.75) == pytest.approx(0.015)


@pytest.mark.parametrize("url", ["http://localhost:1/metrics", "nonsense"])
def test_scrape_of_an_unreachable_endpoint_is_none(url: str) -> None:
    assert scrape(url) is None
