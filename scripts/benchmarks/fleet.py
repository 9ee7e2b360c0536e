"""Servers behind Envoy beside one of them alone, in one run: throughput, first audio, Envoy's share, overload, a
lost server.

    python -m scripts.benchmarks.fleet --checkpoint CHECKPOINT --artifact-dir FOLDER

Serves on all GPUs of the machine. One server alone is called at its own port, while the others are idle. In the last
load a server is killed by SIGKILL.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from qwen3_tts_client.records.environment import environment
from qwen3_tts_client.records.record import read_run
from scripts.benchmarks.common import origin_of, settings_of_environment, show
from scripts.benchmarks.overload import OVERLOAD, Load
from scripts.benchmarks.serving import REPOSITORY, environment_of, read_summary, rows, run, run_bench
from scripts.server.fleet.background import BackgroundFleet
from scripts.server.fleet.plan import FleetError, plan_servers

FIGURES = (
    "load",
    "requests",
    "ttfa_p50_ms",
    "ttfa_p95_ms",
    "audio_s_per_s",
    "stalled_over_50ms",
    "largest_stall_ms",
    "errors",
)
START_SECONDS = 600.0
# Limit from the kill until the server is back.
BACK_SECONDS = 300.0
POLL_SECONDS = 0.02
console = Console(width=140)


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    artifact_dir: Annotated[Path, typer.Option(help="a folder without records")],
    servers: Annotated[int | None, typer.Option(min=2, help="one for each GPU by default")] = None,
    form: Annotated[str, typer.Option(help="of the codec, as in `python -m export --form`")] = "python",
    max_streams: Annotated[int, typer.Option(help="concurrent streams of a server")] = 1024,
    concurrency: Annotated[int, typer.Option(help="streams for each server, in a closed loop")] = 256,
    request_rate: Annotated[float, typer.Option(help="requests a second for each server, in an open loop")] = 150,
    measurement_interval: Annotated[int, typer.Option(help="ms per load")] = 6000,
    workers: Annotated[int, typer.Option(help="client processes for each server")] = 4,
    text: Annotated[str | None, typer.Option(help="for every request, instead of the client's 200 sentences")] = None,
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "vivian",
    max_frames: Annotated[int, typer.Option(min=1, help="of a request")] = 71,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    try:
        count = len(plan_servers(servers, 0, artifact_dir, os.environ))
    except FleetError as error:
        sys.exit(f"error: {error}")
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", form)
    settings = environment_of(checkpoint, max_streams)
    request = ["--speaker", speaker, "--max-frames", max_frames, *(["--text", text] if text else [])]
    with fleet_of(count, artifact_dir / "fleet", settings) as fleet:
        loads, table = Loads(fleet, artifact_dir, request, measurement_interval, workers), list[dict[str, Any]]()
        found = record(table, form, max_streams, text)
        for row in loads.rows(concurrency, request_rate):
            table.append(row)
            if output:  # what was measured outlives a load that fails
                output.write_text(json.dumps(found, indent=1) + "\n")
    show([{name: row[name] for name in table[0]} for row in table], console)
    console.print(f"the killed server was back after {table[-1]['back_after_s']} s")


@contextmanager
def fleet_of(count: int, folder: Path, settings: dict[str, str]) -> Iterator[BackgroundFleet]:
    fleet = BackgroundFleet(count, folder, environment=settings, patience=START_SECONDS)
    with ExitStack() as running:
        with console.status(f"Starting {count} servers (log: {folder / 'log'})"):
            running.enter_context(fleet)
        yield fleet


class Loads:
    """Measures a running fleet with `qwen3-tts bench`; each load gets a folder of its own."""

    def __init__(
        self, fleet: BackgroundFleet, folder: Path, request: Sequence[object], interval: int, workers: int
    ) -> None:
        """`request` are options of the requests, `interval` is ms per load, `workers` client processes per server."""
        self._fleet, self._folder, self._workers = fleet, folder, workers
        self._options = ["--measurement-interval", interval, *request]
        self._kill_seconds = interval / 2e3

    def rows(self, concurrency: int, request_rate: float) -> Iterator[dict[str, Any]]:
        """Rows of one server alone, of all behind Envoy, of all with too much to do, and of all while one is killed."""
        count = len(self._fleet.servers)
        for number, path in ((1, "direct"), (count, "envoy")):
            yield self._measured(path, number, "--concurrency", 1)
            yield self._measured(path, number, "--concurrency", concurrency * number)
            yield self._measured(path, number, "--request-rate", request_rate * number)
        yield self._overloaded(OVERLOAD * request_rate * count)
        yield self._with_a_loss(request_rate * count)

    def _measured(self, path: str, servers: int, kind: str, value: float) -> dict[str, Any]:
        folder = self._folder_of(path, kind, value)
        ports = self._fleet.servers[0] if path == "direct" else None
        target = ["--url", f"localhost:{ports.grpc if ports else self._fleet.ports.port}"]
        metrics = ["--metrics-url", f"http://localhost:{self._fleet.servers[0].metrics}/metrics"]
        load = [kind, f"{value:g}", "--workers", self._workers * servers, "--warmup-request-count", servers]
        run_bench("bench", *target, *metrics, *load, *self._options, "--artifact-dir", folder)
        [row] = rows(read_summary(folder)["loads"])
        return {"servers": servers, "path": path, **{name: row[name] for name in FIGURES}}

    def _folder_of(self, path: str, kind: str, value: float) -> Path:
        return self._folder / f"{path}{kind}-{value:g}"

    def _overloaded(self, rate: float) -> dict[str, Any]:
        """The row says how many requests were refused, and how long a refusal took."""
        row = self._measured("overload", len(self._fleet.servers), "--request-rate", rate)
        [load] = Load.all_of(read_run(self._folder_of("overload", "--request-rate", rate)))
        found = load.row()
        return row | {name: found[name] for name in ("refused", "refusal_p50_ms", "refusal_p95_ms")}

    def _with_a_loss(self, rate: float) -> dict[str, Any]:
        """The last server is killed in the middle; the row says after how many seconds it was chosen again."""
        fleet, count = self._fleet, len(self._fleet.servers)
        with ThreadPoolExecutor(1) as pool:
            measuring = pool.submit(self._measured, "one-killed", count, "--request-rate", rate)
            while not all(fleet.running_streams()):
                if measuring.done():
                    raise FleetError(f"{rate:g} requests a second never had a stream on each server at once")
                time.sleep(POLL_SECONDS)
            time.sleep(self._kill_seconds)
            fleet.tritonserver(count - 1).kill()
            killed = time.monotonic()
            back = self._seconds_until_back(killed)
            row = measuring.result()
        return row | {"back_after_s": back}

    def _seconds_until_back(self, killed: float) -> float:
        """Raises FleetError. It is out as soon as Envoy has missed it once, and back when Envoy chooses it again."""
        is_out = False
        while time.monotonic() < killed + BACK_SECONDS:
            healthy = len(self._fleet.healthy())
            is_out = is_out or healthy < len(self._fleet.servers)
            if is_out and healthy == len(self._fleet.servers):
                return round(time.monotonic() - killed, 1)
            time.sleep(POLL_SECONDS)
        raise FleetError(f"the killed server was not back after {BACK_SECONDS:g} s")


def record(table: list[dict[str, Any]], form: str, max_streams: int, text: str | None) -> dict[str, Any]:
    return {
        **origin_of("scripts.benchmarks.fleet", environment()),
        "settings": {"codec": form, "max_streams": max_streams, "text": text, "environment": settings_of_environment()},
        "rows": table,
    }


if __name__ == "__main__":
    typer.run(main)
