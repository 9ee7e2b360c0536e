"""Scheduling policies under load, in virtual time with the costs of one H200 (scripts/lab/simulation.py)."""

from typing import Any

import pytest

from scripts.lab import simulation
from scripts.lab.simulation import Costs, Simulation

SECONDS = 3.0


def simulate(mode: str, value: float) -> dict[str, Any]:
    return Simulation(Costs.read(), mode, value, SECONDS).run()


@pytest.mark.parametrize(("callers", "p95_ms"), [(1, 10), (8, 18), (64, 60), (256, 160)])
def test_a_burst_is_served_in_groups(callers: int, p95_ms: float) -> None:
    row = simulate("burst", callers)
    assert row["ttfa_p95_ms"] < p95_ms
    assert row["stalled_over_50ms"] == 0


@pytest.mark.parametrize(("mode", "value"), [("closed", 256), ("closed", 1000), ("open", 180), ("open", 350)])
def test_newcomers_stall_no_listener(mode: str, value: float) -> None:
    assert simulate(mode, value)["stalled_over_50ms"] == 0


def test_newcomers_stall_no_listener_of_a_slower_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of one frame each, for the newcomers' sake, would decode half of what the listeners hear."""
    monkeypatch.setattr(simulation, "CALL_SECONDS", 0.004)
    monkeypatch.setattr(simulation, "TALKER_SHARE", 0.7)
    simulated = Simulation(Costs.read().scaled(1.3), "open", 350, SECONDS)
    assert simulated.run()["stalled_over_50ms"] == 0


def test_first_frames_with_the_others_raise_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with newcomers that always make theirs alone."""
    together = simulate("open", 350)
    policy = "qwen3_tts_engine.scheduling.newcomers.NewcomerPolicy.go_alone"
    monkeypatch.setattr(policy, lambda *_: True)
    alone = simulate("open", 350)
    assert alone["audio_s_per_s"] < 0.95 * together["audio_s_per_s"]
