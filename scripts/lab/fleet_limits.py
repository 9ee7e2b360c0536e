"""What several servers of one machine cost each other, with and without Envoy, in one run.

    python -m scripts.lab.fleet_limits --checkpoint CHECKPOINT --artifact-dir FOLDER

Calls one server, then all at once, each by its own client at its own port, then all through Envoys with different
numbers of workers. `pinned` are the same loads with each server on cores of its own, and clients and Envoy on others.
"""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console

from qwen3_tts_client.records.environment import environment
from scripts.benchmarks.common import TEXT, origin_of, show
from scripts.benchmarks.fleet import fleet_of
from scripts.benchmarks.serving import REPOSITORY, ROOT, environment_of, read_summary, rows, run
from scripts.server.fleet import admin
from scripts.server.fleet.background import BackgroundFleet
from scripts.server.fleet.envoy import watched_config
from scripts.server.fleet.plan import LOCAL
from scripts.server.fleet.program import envoy_options, find_envoy

ENVOY_PORT, ENVOY_ADMIN_PORT, ENVOY_SECONDS, POLL_SECONDS = 8051, 9951, 20.0, 0.05
# From a load's start until all of its streams run, and then while its processes' time is counted.
LEAD_SECONDS, COUNTED_SECONDS = 3.5, 2.0
# The part of a server's share of the cores that its own processes get when they are pinned.
SERVER_SHARE = 0.75
console = Console(width=160)


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    artifact_dir: Annotated[Path, typer.Option(help="a folder without records")],
    servers: Annotated[int, typer.Option(min=2)] = 4,
    concurrency: Annotated[int, typer.Option(help="streams for each server")] = 256,
    envoy_workers: Annotated[str, typer.Option(help="threads of the Envoys")] = "1,2,4,8,16",
    client_workers: Annotated[int, typer.Option(help="client processes for each server")] = 4,
    measurement_interval: Annotated[int, typer.Option(help="ms per load")] = 6000,
    form: Annotated[str, typer.Option(help="of the codec, as in `python -m export --form`")] = "python",
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "vivian",
    max_frames: Annotated[int, typer.Option(min=1, help="of a request")] = 71,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", form)
    settings = environment_of(checkpoint, 4 * concurrency)
    bench = ["--text", TEXT, "--speaker", speaker, "--max-frames", max_frames]
    bench += ["--measurement-interval", measurement_interval]
    with fleet_of(servers, artifact_dir / "fleet", settings) as fleet:
        loads = Loads(fleet, artifact_dir, list(map(str, bench)), concurrency, client_workers)
        found: list[dict[str, Any]] = []
        for row in loads.rows([int(workers) for workers in envoy_workers.split(",")]):
            found.append(row)
            if output:  # what was measured outlives a load that fails
                record = {**origin_of("scripts.lab.fleet_limits", environment()), "cores": topology(), "rows": found}
                output.write_text(json.dumps(record, indent=1) + "\n")
    show(found, console)


def topology() -> dict[str, Any]:
    """The machine's cores, memory nodes, and the siblings of the first core."""
    nodes, sibling = (
        Path("/sys/devices/system/node"),
        Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list"),
    )
    return {
        "cores": os.cpu_count(),
        "nodes": {node.name: (node / "cpulist").read_text().strip() for node in sorted(nodes.glob("node[0-9]*"))},
        "siblings": sibling.read_text().strip() if sibling.exists() else None,
    }


class Loads:
    def __init__(
        self, fleet: BackgroundFleet, folder: Path, bench: Sequence[str], concurrency: int, client_workers: int
    ) -> None:
        """`concurrency` and `client_workers` are for each server."""
        self._fleet, self._folder, self._bench = fleet, folder, bench
        self._concurrency, self._client_workers = concurrency, client_workers
        self._others: Collection[int] = range(os.cpu_count() or 1)

    def rows(self, envoy_workers: Sequence[int]) -> Iterator[dict[str, Any]]:
        count = len(self._fleet.servers)
        yield self._direct("one", [0])
        yield self._direct("all", range(count))
        for workers in envoy_workers:
            yield self._through_envoy(f"envoy-{workers}", workers)
        self._pin()
        yield self._direct("pinned-one", [0])
        yield self._direct("pinned-all", range(count))
        for workers in envoy_workers:
            yield self._through_envoy(f"pinned-envoy-{workers}", workers)

    def _direct(self, name: str, servers: Collection[int]) -> dict[str, Any]:
        ports = [self._fleet.servers[server].grpc for server in servers]
        return self._measured(name, ports, self._concurrency, self._client_workers)

    def _through_envoy(self, name: str, workers: int) -> dict[str, Any]:
        count = len(self._fleet.servers)
        with envoy_of(self._fleet, self._folder / f"{name}.json", workers, self._others):
            return self._measured(name, [ENVOY_PORT], self._concurrency * count, self._client_workers * count)

    def _measured(self, name: str, ports: Collection[int], concurrency: int, workers: int) -> dict[str, Any]:
        """A row of one client for each port, all at once."""
        folders = [self._folder / f"{name}-{port}" for port in ports]
        with ThreadPoolExecutor(len(folders) + 1) as pool:
            counting = pool.submit(self._cores_in_use)
            list(pool.map(lambda port, folder: self._run(port, folder, concurrency, workers), ports, folders))
        found = [row for folder in folders for row in rows(read_summary(folder)["loads"])]
        return {
            "path": name,
            "streams": concurrency * len(folders),
            "ttfa_p50_ms": max(row["ttfa_p50_ms"] for row in found),
            "ttfa_p95_ms": max(row["ttfa_p95_ms"] for row in found),
            "audio_s_per_s": round(sum(row["audio_s_per_s"] for row in found), 1),
            "stalled_over_50ms": sum(row["stalled_over_50ms"] for row in found),
            "errors": sum(row["errors"] for row in found),
            "cores": counting.result(),
        }

    def _run(self, port: int, folder: Path, concurrency: int, workers: int) -> None:
        metrics = f"http://localhost:{self._fleet.servers[0].metrics}/metrics"
        command = [sys.executable, "-m", "qwen3_tts_client", "bench", "--url", f"localhost:{port}"]
        command += ["--metrics-url", metrics, "--concurrency", str(concurrency), "--workers", str(workers)]
        command += [*self._bench, "--artifact-dir", str(folder)]
        subprocess.run(command, cwd=ROOT, check=False, preexec_fn=lambda: os.sched_setaffinity(0, self._others))

    def _pin(self) -> None:
        """Gives each server neighbouring cores of its own."""
        cores, count = os.cpu_count() or 1, len(self._fleet.servers)
        size, others = cores // count, set(range(cores))
        for server in range(count):
            own = range(server * size, server * size + max(1, int(SERVER_SHARE * size)))
            others -= set(own)
            for process in tree(self._fleet.launcher(server)):
                for thread in process.threads():
                    os.sched_setaffinity(thread.id, own)
        self._others = sorted(others) or range(cores)

    def _cores_in_use(self) -> dict[str, float]:
        """Cores that each kind of process keeps busy, all servers together."""
        time.sleep(LEAD_SECONDS)
        before, started = processor_seconds(), time.monotonic()
        time.sleep(COUNTED_SECONDS)
        after, seconds = processor_seconds(), time.monotonic() - started
        used = defaultdict[str, float](float)
        for (_, kind), value in ((key, after[key] - before[key]) for key in after if key in before):
            used[kind] += value / seconds
        return {kind: round(value, 1) for kind, value in sorted(used.items()) if value > 0.1}


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def processor_seconds() -> dict[tuple[int, str], float]:
    """By process and kind of process, of the fleet, its Envoy and the clients."""
    found = {}
    for process in tree(psutil.Process()):
        try:
            times = process.cpu_times()
            found[process.pid, kind_of(process)] = times.user + times.system
        except psutil.NoSuchProcess:
            pass
    return found


def kind_of(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    kinds = {"engine_process": "engine", "qwen3_tts_client": "client", "code2wav": "codec", "qwen3_tts": "adapter"}
    name = process.name()
    return next((kind for word, kind in kinds.items() if word in command), name) if "python" in name else name


@contextmanager
def envoy_of(fleet: BackgroundFleet, config: Path, workers: int, cores: Collection[int]) -> Iterator[None]:
    """An Envoy in front of the fleet's servers."""
    endpoints = (fleet.folder / "endpoints.json").resolve()
    config.write_text(json.dumps(watched_config(endpoints, LOCAL, ENVOY_PORT, ENVOY_ADMIN_PORT)))
    command = [str(find_envoy()), "--config-path", str(config), *envoy_options(workers)]
    process = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    try:
        deadline = time.monotonic() + ENVOY_SECONDS
        while not is_ready(len(fleet.servers)):
            if time.monotonic() > deadline:
                sys.exit(f"error: Envoy did not become ready in {ENVOY_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
        time.sleep(10 * POLL_SECONDS)
        yield
    finally:
        process.terminate()
        process.wait()


def is_ready(servers: int) -> bool:
    try:
        return len(admin.healthy(ENVOY_ADMIN_PORT)) == servers
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    typer.run(main)
