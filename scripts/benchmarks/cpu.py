"""Benchmarks a server on a CPU: ticks, codec calls, first audio and underruns with one stream and several.

    python -m scripts.benchmarks.cpu --output docs/benchmarks/cpu.json

Adds its rows to the record, in place of those of the same model and commit.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from qwen3_tts_client.analysis.table import load_name
from qwen3_tts_client.records.environment import environment
from qwen3_tts_client.records.record import read_run
from scripts.benchmarks.common import origin_of, show
from scripts.benchmarks.serving import REPOSITORY, increase, read_summary, rounded, run, run_bench, server_of

CHECKPOINT = Path(__file__).parents[1] / "demo_voice" / "tiny-speaking"
FORM, STREAMS, WARMUP = "onnx", 16, 4
console = Console()


def main(
    checkpoint: Annotated[Path, typer.Option(help="in the released layout")] = CHECKPOINT,
    artifact_dir: Annotated[Path, typer.Option(help="a folder without a record")] = Path("artifacts") / "cpu",
    concurrency: Annotated[str, typer.Option(help="closed loops")] = "1,2,4,8",
    requests: Annotated[int, typer.Option(help="of each load")] = 32,
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "ryan",
    max_frames: Annotated[int, typer.Option(min=0, help="of a request; 0 leaves the limit to the server")] = 0,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", FORM)
    with server_of(str(checkpoint), STREAMS, artifact_dir / "server.log", []) as server:
        load = ["--concurrency", concurrency, "--request-count", requests, "--warmup-request-count", WARMUP]
        request = ["--speaker", speaker, "--language", "english", *(["--max-frames", max_frames] if max_frames else [])]
        run_bench("bench", "--url", f"localhost:{server.ports.grpc}", *load, *request, "--artifact-dir", artifact_dir)
    machine = environment()
    found = rows(artifact_dir, checkpoint.name, machine)
    show(found, console)
    if output:
        write(output, found, machine)


def rows(folder: Path, model: str, machine: Mapping[str, Any]) -> list[dict[str, Any]]:
    measured, loads = read_run(folder), read_summary(folder)["loads"]
    return [
        {
            "machine": f"{machine['cpu']}, {machine['cpus']} cores",
            "commit": machine["commit"],
            "model": model,
            "form": FORM,
            "load": load_name(load["mode"], load["value"]),
            "tick_ms": mean_ms(*measured.scraped(record), "qwen3_tts_step_duration_seconds"),
            "codec_ms": mean_ms(*measured.scraped(record), "qwen3_tts_codec_seconds"),
            "ttfa_p50_ms": rounded(load["ttfa_ms"], "p50", 1),
            "rtf_p50": rounded(load["rtf"], "p50", 3),
            "underruns": underruns(load),
            "errors": load["requests"] - load["outcomes"].get("ok", 0),
        }
        for record, load in zip(measured.loads, loads, strict=True)
    ]


def mean_ms(before: dict[str, float], after: dict[str, float], name: str) -> float | None:
    """Mean of a histogram's observations between two scrapes; None without any."""
    seconds, count = (increase(before, after, f"{name}_{part}") for part in ("sum", "count"))
    return round(1e3 * seconds / count, 2) if count else None


def underruns(load: dict[str, Any]) -> int:
    """Streams that stalled."""
    rebuffering: dict[str, float] = load["rebuffering"]
    return round((1 - (rebuffering["c0"] or 0)) * rebuffering["streams"])


def write(output: Path, found: list[dict[str, Any]], machine: Mapping[str, Any]) -> None:
    kept = json.loads(output.read_text())["rows"] if output.is_file() else []
    new = {(row["commit"], row["model"]) for row in found}
    kept = [row for row in kept if (row["commit"], row["model"]) not in new]
    record = origin_of("scripts.benchmarks.cpu", machine) | {"rows": kept + found}
    output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
