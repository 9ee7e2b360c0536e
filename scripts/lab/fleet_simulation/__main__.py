"""Simulates proxies that choose among servers, each knowing its own outstanding streams only.

    python -m scripts.lab.fleet_simulation --record docs/benchmarks/serving-h200.json --servers 4,100 --proxies 1,10 \\
        --policy full-scan,choice-2 --rate 100

Prints one row for each combination. Servers are not simulated from within: their speed and the distribution of their
times to first audio, by the number of running streams, are interpolated from the record (server_curve.py). Times of
the proxies themselves and of networks are left out. Equal seeds print equal figures.
"""

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from qwen3_tts_client.capacity.serving_record import read_serving_record
from qwen3_tts_client.errors import ClientError
from scripts.benchmarks.common import command_of, show
from scripts.lab.fleet_simulation.fleet import Figures, Scenario, SimulatedFleet
from scripts.lab.fleet_simulation.proxies import check_policy
from scripts.lab.fleet_simulation.server_curve import ServerCurve

console = Console(width=160)


def main(
    record: Annotated[Path, typer.Option(help="of one server, by scripts.benchmarks.serving")],
    servers: Annotated[str, typer.Option(help="numbers of servers")] = "4",
    proxies: Annotated[str, typer.Option(help="numbers of proxies")] = "1",
    policy: Annotated[str, typer.Option(help="full-scan, choice-N, round-robin, random")] = "full-scan",
    subset: Annotated[str, typer.Option(help="servers that each proxy knows; 0 for all")] = "0",
    random_subsets: Annotated[bool, typer.Option(help="each proxy draws its own subset, instead of even ones")] = False,
    rate: Annotated[float, typer.Option(min=0, help="requests a second for each server, an open loop")] = 0.0,
    callers: Annotated[int, typer.Option(min=0, help="for each server, in a closed loop")] = 0,
    audio_seconds: Annotated[
        float | None, typer.Option(min=0.01, help="of a request; default: the record's mean")
    ] = None,
    length_deviation: Annotated[float, typer.Option(min=0, help="of a request's audio seconds, over their mean")] = 0.0,
    slow: Annotated[int, typer.Option(min=0, help="servers that take --slowness times as long")] = 0,
    slowness: Annotated[float, typer.Option(min=1)] = Scenario.slowness,
    lost: Annotated[int, typer.Option(min=0, help="servers that die when the measured time starts")] = 0,
    detected: Annotated[
        float, typer.Option(min=0, help="seconds until no proxy chooses a dead server")
    ] = Scenario.detected,
    warm_up: Annotated[
        float, typer.Option(min=0, help="seconds of virtual time before the measured")
    ] = Scenario.warm_up,
    seconds: Annotated[float, typer.Option(min=0.1, help="measured, of virtual time")] = Scenario.seconds,
    step: Annotated[float, typer.Option(min=1e-4, max=0.1, help="seconds of virtual time")] = Scenario.step,
    seed: Annotated[int, typer.Option()] = Scenario.seed,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    try:
        measured = read_serving_record(record)
        audio_seconds = audio_seconds or measured.audio_seconds
        if not audio_seconds:
            raise ClientError(f"--record {record}: no open loop; give the mean audio of a request, --audio-seconds")
        base = Scenario(
            rate=rate, callers=callers, audio_seconds=audio_seconds, length_deviation=length_deviation,
            random_subsets=random_subsets, slow=slow, slowness=slowness, lost=lost, detected=detected,
            warm_up=warm_up, seconds=seconds, step=step, seed=seed,
        )  # fmt: skip
        curve = ServerCurve.of(measured)
        scenarios = list(combinations(base, servers, proxies, policy, subset))
    except (ClientError, ValueError) as error:
        print(f"fleet_simulation: {error}", file=sys.stderr)
        sys.exit(2)
    rows = [simulated(scenario, curve) for scenario in scenarios]
    if as_json:
        command = command_of("scripts.lab.fleet_simulation")
        simulated_from = {"record": str(record), "commit": measured.commit, "command": command, "seed": seed}
        print(json.dumps({**simulated_from, "rows": rows}, indent=1))
    else:
        show(rows, console)


def combinations(base: Scenario, servers: str, proxies: str, policy: str, subset: str) -> Iterator[Scenario]:
    """Raises ValueError for a scenario that cannot be."""
    numbers = (_numbers("servers", servers, 1), _numbers("proxies", proxies, 1), _numbers("subset", subset, 0))
    if bool(base.rate) == bool(base.callers):
        raise ValueError("give --rate or --callers, above 0")
    for count, some, size, name in itertools.product(*numbers, policy.split(",")):
        check_policy(name)
        if size > count:
            raise ValueError(f"--subset {size}: more than {count} servers")
        if base.lost + base.slow >= count:
            raise ValueError(f"--lost {base.lost} --slow {base.slow}: {count} servers leave no other")
        yield dataclasses.replace(base, servers=count, proxies=some, subset=size, policy=name)


def simulated(scenario: Scenario, curve: ServerCurve) -> dict[str, Any]:
    """A row of the table."""
    begun = time.perf_counter()
    figures = SimulatedFleet(scenario, curve).run()
    return {
        "servers": scenario.servers,
        "proxies": scenario.proxies,
        "subset": scenario.subset or "all",
        "policy": scenario.policy,
        **{name: shown(figures) for name, shown in COLUMNS.items()},
        "took s": round(time.perf_counter() - begun, 1),
    }


COLUMNS: dict[str, Callable[[Figures], float]] = {
    "p50 ms": lambda figures: round(figures.p50_ms, 1),
    "p95 ms": lambda figures: round(figures.p95_ms, 1),
    "p99 ms": lambda figures: round(figures.p99_ms, 1),
    "audio s/s": lambda figures: round(figures.audio_rate),
    "streams": lambda figures: round(figures.streams, 1),
    "dev. %": lambda figures: round(100 * figures.deviation, 1),
    "busiest": lambda figures: round(figures.busiest, 2),
    "failed %": lambda figures: round(100 * figures.failed, 2),
    "beyond %": lambda figures: round(100 * figures.beyond, 2),
}


def _numbers(name: str, text: str, least: int) -> list[int]:
    numbers = [int(part) if part.isdecimal() else -1 for part in text.split(",")]
    if min(numbers) < least:
        raise ValueError(f"--{name} {text}: expected numbers of {least} or more, separated by commas")
    return numbers


if __name__ == "__main__":
    typer.run(main)
