"""Proxies that choose among simulated servers, against measured runs of one and of four servers."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3_tts_client.capacity.serving_record import Row, ServingRecord
from qwen3_tts_client.errors import ClientError
from scripts.lab.fleet_simulation.__main__ import main
from scripts.lab.fleet_simulation.fleet import Figures, Scenario, SimulatedFleet
from scripts.lab.fleet_simulation.proxies import Proxies, all_servers, even_subsets, random_subsets
from scripts.lab.fleet_simulation.server_curve import ServerCurve

pytestmark = pytest.mark.long

# One H200, 1.7B, MPS, requests of 71 frames, commit bc3eca1.
AUDIO_SECONDS = 71 * 0.08
ROWS = (
    Row("c", 1, 10.3, 10.3, 34.0, 0, 0),
    Row("c", 64, 21.5, 31.2, 727.0, 0, 0),
    Row("c", 256, 45.4, 77.5, 1442.0, 0, 0),
    Row("rps", 100, 20.5, 27.9, 100 * AUDIO_SECONDS, 0, 0),
    Row("rps", 180, 28.0, 43.0, 180 * AUDIO_SECONDS, 0, 0),
)
MEASURED = ServingRecord(Path("one-h200"), "NVIDIA H200", "bc3eca1", ROWS)
CURVE = ServerCurve.of(MEASURED)
# Four of them behind one Envoy (LEAST_REQUEST over all), the same commit: 600 requests a second, and 1 024 callers,
# beside one server with 256 callers in the same call; Envoy's share of first audio.
FOUR_P95_MS, FOUR_AUDIO_RATE, ONE_AUDIO_RATE, ENVOY_MS = 38.2, 5113.0, 1344.0, 1.6
POLICIES = ("full-scan", "choice-2", "round-robin", "random")
SERVING = Path(__file__).parents[3] / "docs" / "benchmarks" / "serving-h200.json"
PAGE = SERVING.parents[1] / "capacity.md"


def simulate(curve: ServerCurve = CURVE, **scenario: Any) -> Figures:
    return SimulatedFleet(Scenario(**({"audio_seconds": AUDIO_SECONDS} | scenario)), curve).run()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.load)
def test_one_server_has_the_figures_of_each_measured_load(row: Row) -> None:
    load = {"callers": int(row.value)} if row.mode == "c" else {"rate": row.value}
    figures = simulate(seconds=20, **load)
    assert figures.audio_rate == pytest.approx(row.audio_rate, rel=0.05)
    assert (figures.p50_ms, figures.p95_ms) == pytest.approx((row.p50_ms, row.p95_ms), rel=0.07)


def test_four_servers_behind_one_proxy_have_the_measured_first_audio() -> None:
    figures = simulate(servers=4, rate=150, seconds=10)
    assert figures.p95_ms + ENVOY_MS == pytest.approx(FOUR_P95_MS, rel=0.05)


def test_four_servers_behind_one_proxy_make_the_measured_audio() -> None:
    """Within 6 %: four servers, their callers and Envoy shared the measured host, which the simulation leaves out."""
    largest = Row("c", 256, 45.4, 77.5, ONE_AUDIO_RATE, 0, 0)
    same_call = ServingRecord(Path("same-call"), "NVIDIA H200", "bc3eca1", (*ROWS[:2], largest))
    figures = simulate(ServerCurve.of(same_call), servers=4, callers=256, seconds=5)
    assert figures.audio_rate == pytest.approx(FOUR_AUDIO_RATE, rel=0.06)
    assert figures.streams == 256


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_seeds_have_equal_figures_and_others_do_not(policy: str) -> None:
    scenario: dict[str, Any] = {"servers": 8, "proxies": 3, "rate": 50, "seconds": 0.5, "length_deviation": 0.5}
    one, again, other = (simulate(policy=policy, seed=seed, **scenario) for seed in (1, 1, 2))
    assert one == again
    assert one != other


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(2, 12), st.floats(60, 150), st.integers(0, 1000))
def test_full_scan_by_one_proxy_is_never_worse_balanced_than_random(servers: int, rate: float, seed: int) -> None:
    scenario: dict[str, Any] = {"servers": servers, "rate": rate, "seconds": 1, "warm_up": 1, "step": 0.005}
    full_scan, drawn = (simulate(policy=policy, seed=seed, **scenario) for policy in ("full-scan", "random"))
    assert full_scan.deviation < drawn.deviation
    assert full_scan.busiest < drawn.busiest


def test_more_choices_balance_better() -> None:
    deviations = [
        simulate(servers=20, policy=policy, rate=100, seconds=1).deviation
        for policy in ("random", "choice-2", "choice-4", "full-scan")
    ]
    assert deviations == sorted(deviations, reverse=True)


def test_even_subsets_balance_better_than_random_ones() -> None:
    scenario: dict[str, Any] = {"servers": 60, "proxies": 30, "subset": 10, "rate": 100, "seconds": 1}
    even, drawn = (simulate(random_subsets=drawn, **scenario) for drawn in (False, True))
    assert even.deviation < 0.5 * drawn.deviation
    assert even.p95_ms < drawn.p95_ms


def test_least_requests_avoid_slow_servers() -> None:
    scenario: dict[str, Any] = {"servers": 20, "slow": 2, "slowness": 3, "rate": 100, "warm_up": 5}
    least, in_turn = (simulate(policy=policy, **scenario) for policy in ("full-scan", "round-robin"))
    assert least.p95_ms < 0.8 * in_turn.p95_ms


@pytest.mark.parametrize("load", [{"callers": 30}, {"rate": 80}], ids=["closed", "open"])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_stream_is_lost_or_counted_twice_when_a_server_dies(policy: str, load: dict[str, Any]) -> None:
    scenario = Scenario(servers=6, proxies=4, policy=policy, subset=3, lost=1, detected=0.2, seconds=0.5, **load)
    fleet = SimulatedFleet(scenario, CURVE)
    fleet.check_integrity()
    assert fleet.run().streams > 1
    fleet.check_integrity()


def test_without_detection_a_dead_server_attracts_the_requests_of_full_scan() -> None:
    scenario: dict[str, Any] = {"servers": 10, "rate": 50, "lost": 1, "seconds": 2}
    detected, undetected = (simulate(detected=detected, **scenario) for detected in (0.0, 2.0))
    assert undetected.failed > 0.5
    broken = 0.1 * detected.streams * 9 / (50 * 10 * 2)
    assert detected.failed == pytest.approx(broken, rel=0.5), "only the dead server's own streams"


def test_requests_beyond_the_record_are_counted() -> None:
    assert simulate(servers=2, rate=150, seconds=1).beyond == 0
    assert simulate(servers=2, rate=400, seconds=1).beyond > 0.5


def test_a_thousand_servers_are_simulated() -> None:
    figures = simulate(servers=1000, proxies=20, policy="choice-2", rate=100, warm_up=0.6, seconds=0.2, step=0.01)
    assert figures.audio_rate == pytest.approx(1000 * 100 * AUDIO_SECONDS, rel=0.1)


@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 60), st.integers(0, 99))
def test_full_scan_fills_servers_evenly_and_round_robin_too(
    proxies: int, servers: int, requests: int, seed: int
) -> None:
    for policy in ("full-scan", "round-robin"):
        chosen = chosen_slots(policy, proxies, servers, requests, seed)
        assert np.ptp(chosen, axis=1).max() <= 1


def chosen_slots(policy: str, proxies: int, servers: int, requests: int, seed: int) -> Any:
    """[proxies, servers]: requests sent, none of which ends."""
    rng = np.random.default_rng(seed)
    made = Proxies(all_servers(proxies, servers, rng), policy, rng)
    who = np.arange(proxies)
    for _ in range(requests):
        made.outstanding[who, made.choose(who)] += 1
    return made.outstanding


@pytest.mark.parametrize("policy", POLICIES)
def test_an_ejected_server_is_not_chosen(policy: str) -> None:
    rng = np.random.default_rng(0)
    made = Proxies(all_servers(5, 3, rng), policy, rng)
    made.eject(1)
    who = np.arange(5)
    chosen = {int(server) for _ in range(20) for server in made.hosts[who, made.choose(who)]}
    assert chosen == {0, 2}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_proxy_without_healthy_servers_goes_on(policy: str) -> None:
    rng = np.random.default_rng(0)
    made = Proxies(all_servers(2, 1, rng), policy, rng)
    made.eject(0)
    assert made.choose(np.arange(2)).tolist() == [0, 0]


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
def test_even_subsets_know_each_server_equally_often(proxies: int, size: int, groups: int, seed: int) -> None:
    hosts = even_subsets(proxies, size * groups, size, np.random.default_rng(seed))
    assert hosts.shape == (proxies, size)
    assert all(len(set(row)) == size for row in hosts.tolist())
    known = np.bincount(hosts.reshape(-1), minlength=size * groups)
    assert np.ptp(known) <= 1


def test_a_subset_has_no_server_twice() -> None:
    hosts = random_subsets(50, 20, 7, np.random.default_rng(0))
    assert all(len(set(row)) == 7 for row in hosts.tolist())


def test_the_curve_has_the_measured_rates_and_shares_the_largest_beyond() -> None:
    streams = np.array([1, 64, 256, 512, 1024])
    assert streams * CURVE.speeds(streams) == pytest.approx([34, 727, 1442, 1442, 1442])
    assert (np.diff(CURVE.median_ms) >= 0).all()


def test_a_record_with_one_closed_loop_has_no_curve() -> None:
    with pytest.raises(ClientError, match="two closed loops"):
        ServerCurve.of(ServingRecord(Path("short"), "G", "0", (ROWS[0], *ROWS[3:])))


@pytest.mark.parametrize("policy", ["full-scan", "choice-4", "choice-2", "round-robin", "random"])
def test_figures_of_ten_proxies_on_the_page_are_simulated_ones(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    load: dict[str, Any] = {"rate": 150, "audio_seconds": AUDIO_SECONDS, "length_deviation": 0.5}
    main(SERVING, servers="100", proxies="10", policy=policy, as_json=True, **load)
    [row] = json.loads(capsys.readouterr().out)["rows"]
    [line] = re.findall(rf"^\| `{policy}` \|.* ms, .*$", PAGE.read_text(), re.MULTILINE)
    p95_ms, deviation, busiest = (float(number) for number in re.findall(r"[\d.]+", line.split("|")[3]))
    assert row["p95 ms"] == pytest.approx(p95_ms, rel=0.02)
    assert row["dev. %"] == pytest.approx(deviation, rel=0.1)
    assert row["busiest"] == pytest.approx(busiest, rel=0.05)


def test_the_command_has_a_row_for_each_combination(capsys: pytest.CaptureFixture[str]) -> None:
    main(SERVING, servers="2,3", policy="full-scan,choice-2", rate=10, seconds=0.1, warm_up=0.1, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["seed"] == 0
    assert [(row["servers"], row["policy"]) for row in printed["rows"]] == [
        (2, "full-scan"), (2, "choice-2"), (3, "full-scan"), (3, "choice-2"),
    ]  # fmt: skip
    main(SERVING, servers="2", rate=10, seconds=0.1, warm_up=0.1)
    assert "full-scan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"policy": "best"}, "policy 'best' is none of full-scan, round-robin, random, choice-N"),
        ({"policy": "choice-0"}, "policy 'choice-0' is none of"),
        ({"servers": "0"}, "--servers 0: expected numbers of 1 or more"),
        ({"proxies": "2,x"}, "--proxies 2,x: expected numbers"),
        ({"subset": "5"}, "--subset 5: more than 4 servers"),
        ({"lost": 4}, "--lost 4 --slow 0: 4 servers leave no other"),
        ({"rate": 0.0}, "give --rate or --callers"),
        ({"callers": 5}, "give --rate or --callers"),
        ({"record": SERVING.with_name("talker-h200.json")}, "it must be a record of scripts.benchmarks.serving"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused(
    wish: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"record": SERVING, "rate": 10.0} | wish
    with pytest.raises(SystemExit) as exit_code:
        main(**given)
    assert exit_code.value.code == 2
    assert message in capsys.readouterr().err
