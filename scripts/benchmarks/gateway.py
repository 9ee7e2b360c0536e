"""First audio, throughput and stalls through the gateway beside gRPC alone, with one client and one server in one run.

    python -m scripts.benchmarks.gateway --url localhost:8001 --artifact-dir FOLDER

A server must be running: a tritonserver, or `python -m tests.fakes.stub_server` for the gateway's own cost.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from qwen3_tts_client.records.environment import environment
from scripts.benchmarks.common import origin_of, settings_of_environment, show
from scripts.benchmarks.serving import read_summary, rows, run_bench

FORMATS = ("pcm", "mp3", "opus")
FIGURES = ("ttfa_p50_ms", "ttfa_p95_ms", "audio_s_per_s", "stalled_over_50ms")
console = Console()


def main(
    artifact_dir: Annotated[Path, typer.Option(help="a folder without records")],
    url: Annotated[str, typer.Option(help="gRPC endpoint of the server")] = "localhost:8001",
    concurrency: Annotated[str, typer.Option(help="closed loops")] = "1,64",
    rounds: Annotated[int, typer.Option(help="requests of each stream")] = 6,
    requests: Annotated[int, typer.Option(help="of a load, at least")] = 40,
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "vivian",
    max_frames: Annotated[int, typer.Option(help="of a request")] = 71,
    text: Annotated[str | None, typer.Option(help="of every request; the prompts of `bench` by default")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    request = ["--speaker", speaker, "--max-frames", max_frames, *(["--text", text] if text else [])]
    table: list[dict[str, Any]] = []
    with gateway_of(url, artifact_dir / "gateway.log") as gateway:
        for streams in map(int, concurrency.split(",")):
            count = max(requests, rounds * streams)
            load = ["--concurrency", streams, "--request-count", count, "--warmup-request-count", streams, *request]
            table.append(measured(artifact_dir / f"grpc-{streams}", ["--url", url, *load], "grpc", "pcm"))
            for name in FORMATS:
                target = ["--service-kind", "openai", "--url", gateway, "--extra-inputs", extra(name)]
                table.append(measured(artifact_dir / f"gateway-{name}-{streams}", [*target, *load], "gateway", name))
    show(table, console)
    if output:
        output.write_text(json.dumps(record(table), indent=1) + "\n")


@contextmanager
def gateway_of(url: str, log: Path) -> Iterator[str]:
    """The URL of a gateway in a process of its own."""
    command = [sys.executable, "-m", "qwen3_tts_client", "gateway", "--url", url, "--port", "0"]
    with log.open("w") as file, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        if not re.fullmatch(r"http://\S+\n", first):
            sys.exit(first)
        copier = subprocess.Popen(["cat"], stdin=process.stderr, stdout=file)
        try:
            yield first.strip()
        finally:
            process.terminate()
            process.wait()
            copier.wait()


def extra(response_format: str) -> str:
    return json.dumps({"response_format": response_format})


def measured(folder: Path, arguments: list[object], path: str, response_format: str) -> dict[str, Any]:
    run_bench("bench", "--artifact-dir", folder, *arguments)
    [row] = rows(read_summary(folder)["loads"])
    return {
        "path": path,
        "load": row["load"],
        "format": response_format,
        "requests": row["requests"],
        "failed": row["errors"],
        **{name: row[name] for name in FIGURES},
    }


def record(table: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **origin_of("scripts.benchmarks.gateway", environment()),
        "settings": settings_of_environment(),
        "rows": table,
    }


if __name__ == "__main__":
    typer.run(main)
