"""Benchmarks the whole server in one command: export, serve, loads of all kinds, report, record.

    python -m scripts.benchmarks.serving --checkpoint CHECKPOINT --artifact-dir artifacts/serving

Writes the client's record, its report and the server's log to the folder; `--output` is for the rows as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from qwen3_tts_client.analysis.results import SUMMARY_NAME
from qwen3_tts_client.analysis.table import load_name
from qwen3_tts_client.errors import ExitCode
from qwen3_tts_client.records.prometheus import parse, scrape, total
from qwen3_tts_client.records.record import read_run
from qwen3_tts_engine.config import ENVIRONMENT_PREFIX
from scripts.benchmarks.common import origin_of, settings_of_environment
from scripts.server.installation import backend_options
from scripts.server.tritonserver import TritonServer

ROOT = Path(__file__).parents[2]
REPOSITORY = ROOT / "model_repository"
CODE2WAV = 'model="code2wav"'
console = Console()


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    artifact_dir: Annotated[Path, typer.Option(help="a folder without a record")],
    form: Annotated[str, typer.Option(help="of the codec, as in `python -m export --form`")] = "python",
    max_streams: Annotated[int, typer.Option(help="concurrent streams")] = 512,
    burst: Annotated[str, typer.Option(help="requests at once to an idle server; empty for none")] = "1,8,64,256",
    concurrency: Annotated[str, typer.Option(help="closed loops")] = "1,2,4,8,16,32,64,128,256,512",
    request_rate: Annotated[str, typer.Option(help="open loops")] = "1,2,5,10,20,30,40",
    search_rate: Annotated[
        str | None, typer.Option(help="FIRST:LAST:STEP in which to search the largest good request rate")
    ] = None,
    measurement_interval: Annotated[int, typer.Option(help="ms per load")] = 15_000,
    workers: Annotated[int, typer.Option(help="client processes; bursts need several")] = 1,
    text: Annotated[str | None, typer.Option(help="for every request, instead of the client's 200 sentences")] = None,
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "vivian",
    max_frames: Annotated[int, typer.Option(min=0, help="of a request; 0 leaves the limit to the server")] = 71,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
    backend: Annotated[
        list[Path] | None, typer.Option(exists=True, file_okay=False, help="folder of a compiled backend")
    ] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", form)
    loads: list[object] = ["--first-request", *(["--burst", burst] if burst else [])]
    loads += ["--concurrency", concurrency, "--request-rate", request_rate, "--artifact-dir", artifact_dir]
    bench = ["bench", "--measurement-interval", measurement_interval, "--warmup-request-count", 16]
    bench += ["--workers", workers, "--speaker", speaker, *(["--text", text] if text else [])]
    # With random weights, streams seldom end by themselves.
    bench += ["--max-frames", max_frames] if max_frames else []
    with server_of(checkpoint, max_streams, artifact_dir / "server.log", backend or []):
        run_bench(*bench, *loads)
        if search_rate:
            search = ["--binary-search", "--request-rate", search_rate, "--artifact-dir", artifact_dir / "search"]
            run_bench(*bench, *search)
    if output:
        measured = read_run(artifact_dir)
        calls = [codec_calls(*measured.scraped(load)) for load in measured.loads]
        found = record(read_summary(artifact_dir), calls, form, max_streams, text)
        if search_rate:
            found["search"] = list(rows(read_summary(artifact_dir / "search")["loads"]))
        output.write_text(json.dumps(found, indent=1) + "\n")
    run("qwen3_tts_client", "report", artifact_dir)


@contextmanager
def server_of(
    checkpoint: str,
    max_streams: int,
    log_file: Path,
    backends: Sequence[Path],
    more_settings: dict[str, str] | None = None,
    variables: dict[str, str] | None = None,
    repository: Path = REPOSITORY,
) -> Iterator[TritonServer]:
    """A ready server; `variables` are others of its environment than settings."""
    environment = environment_of(checkpoint, max_streams, **(more_settings or {})) | (variables or {})
    options = backend_options(ROOT / "build", backends)
    with ExitStack() as running:
        log = running.enter_context(log_file.open("wb"))
        server = TritonServer(repository, options=options, environment=environment, log=log, ready_timeout=600)
        with console.status(f"Starting tritonserver (log: {log.name})"):
            running.enter_context(server)
        yield server


def environment_of(checkpoint: str, max_streams: int, **more: str) -> dict[str, str]:
    """Settings of a server under load; `more` are by name without the prefix."""
    settings = {"CHECKPOINT": checkpoint, "MAX_STREAMS": str(max_streams), "MAX_WAITING": "1024"} | more
    return {f"{ENVIRONMENT_PREFIX}{name}": value for name, value in settings.items()}


def read_summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / SUMMARY_NAME).read_text()))


def run(module: str, *arguments: object, accepted: Collection[int] = (0,)) -> None:
    """Exits with the command's exit code unless that is accepted."""
    done = subprocess.run([sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, check=False)
    if done.returncode not in accepted:
        sys.exit(done.returncode)


def run_bench(*arguments: object) -> None:
    """Failed requests are part of the record."""
    run("qwen3_tts_client", *arguments, accepted=(ExitCode.OK, ExitCode.PARTIAL))


def record(
    summary: dict[str, Any], calls: list[dict[str, Any]], form: str, max_streams: int, text: str | None
) -> dict[str, Any]:
    """The record of a run in docs/benchmarks/; `calls` are the codec's of each load."""
    return {
        **origin_of("scripts.benchmarks.serving", summary),
        "settings": {
            "codec": form,
            "max_streams": max_streams,
            "text": text or "client/qwen3_tts_client/bench/prompts/everyday.jsonl",
            "environment": settings_of_environment(),
            "packages": summary["packages"],
        },
        "rows": [row | codec for row, codec in zip(rows(summary["loads"]), calls, strict=True)],
    }


def rows(loads: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for load in loads:
        rebuffering = load["rebuffering"]
        yield {
            "load": f"rps={load['value']:g}" if load["mode"] == "open" else load_name(load["mode"], load["value"]),
            "requests": load["requests"],
            "ttfa_p50_ms": rounded(load["ttfa_ms"], "p50", 2),
            "ttfa_p95_ms": rounded(load["ttfa_ms"], "p95", 2),
            "rtf_p50": rounded(load["rtf"], "p50", 4),
            "audio_s_per_s": round(load["audio_throughput"], 1),
            "stalled_over_50ms": round((1 - (rebuffering["c50"] or 0)) * rebuffering["streams"]),
            "largest_stall_ms": rounded(rebuffering["largest_stall_ms"], "max", 1),
            "errors": load["requests"] - load["outcomes"].get("ok", 0),
        }


def codec_calls(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """Number of codec calls of a load and mean rows per call; mean time of a call at the talker, and of one through
    Triton in the backend (compute_infer). Empty without metrics."""

    growth = partial(increase, before, after)
    seen, calls = growth("qwen3_tts_codec_seconds_count"), growth("qwen3_tts_codec_calls_total")
    if not seen or not calls:
        return {}
    found = {
        "codec_calls": int(calls),
        "codec_rows": round(growth("qwen3_tts_codec_chunks_total") / calls, 1),
        "codec_call_ms": round(1e3 * growth("qwen3_tts_codec_seconds_sum") / seen, 2),
    }
    if through_triton := growth("nv_inference_exec_count", CODE2WAV):
        microseconds = growth("nv_inference_compute_infer_duration_us", CODE2WAV)
        found["codec_own_ms"] = round(microseconds / through_triton / 1e3, 2)
    return found


def scraped(server: TritonServer) -> dict[str, float]:
    return parse(scrape(f"http://localhost:{server.ports.metrics}/metrics") or "")


def increase(before: dict[str, float], after: dict[str, float], name: str, label: str = "") -> float:
    """Increase of a counter between two scrapes."""
    return (total(after, name, label) or 0.0) - (total(before, name, label) or 0.0)


def rounded(statistics: dict[str, float] | None, name: str, digits: int) -> float | None:
    """None without measurements."""
    return round(statistics[name], digits) if statistics else None


if __name__ == "__main__":
    typer.run(main)
