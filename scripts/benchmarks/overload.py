"""Effect of four times the load on requests that are served and on those that are refused.

    python -m scripts.benchmarks.overload --checkpoint CHECKPOINT --artifact-dir FOLDER --request-rate 4

Serves with overload=refuse, and sends requests at the rate, at four times the rate, and at the rate again.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from qwen3_tts_client.analysis.playback import MS, NS, play
from qwen3_tts_client.records.environment import environment
from qwen3_tts_client.records.record import LoadRecord, RequestRecord, Run, read_run
from scripts.benchmarks.common import origin_of, settings_of_environment, show
from scripts.benchmarks.serving import run, run_bench, server_of

OVERLOAD = 4
# First audio up to this multiple of the first load's 95th percentile is normal.
NORMAL = 1.5
WARM_UP = 16
console = Console()


@dataclass(frozen=True)
class Load:
    """The requests sent during a load."""

    record: LoadRecord
    requests: list[RequestRecord]

    @classmethod
    def all_of(cls, run: Run) -> Iterator["Load"]:
        for load in run.loads:
            yield cls(load, [r for r in run.requests if r.load == load.id and r.phase == "measure"])

    def of_outcome(self, outcome: str) -> list[RequestRecord]:
        return [request for request in self.requests if request.timeline.outcome == outcome]

    @property
    def first_audio_ms(self) -> list[float]:
        return [_first_audio_ms(request) for request in self.of_outcome("ok")]

    def sent_in(self, second: int) -> list[RequestRecord]:
        """Requests sent in a second of the load, from 0."""
        begin = self.record.start_ns + second * NS
        return [request for request in self.requests if begin <= request.timeline.sent_ns < begin + NS]

    def row(self) -> dict[str, Any]:
        served, refused = self.of_outcome("ok"), self.of_outcome("unavailable")
        refusals_ms = [(r.timeline.end_ns - r.timeline.sent_ns) / MS for r in refused]
        return {
            "load": f"rps={self.record.value:g}",
            "requests": len(self.requests),
            "served": len(served),
            "refused": len(refused),
            "failed": len(self.requests) - len(served) - len(refused),
            "ttfa_p95_ms": _percentile(self.first_audio_ms, 95),
            "largest_stall_ms": _percentile([_largest_stall_ms(request) for request in served], 100),
            "refusal_p50_ms": _percentile(refusals_ms, 50),
            "refusal_p95_ms": _percentile(refusals_ms, 95),
            "refusal_max_ms": _percentile(refusals_ms, 100),
        }


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    artifact_dir: Annotated[Path, typer.Option(help="a folder without a record")],
    request_rate: Annotated[float, typer.Option(help="per second, that the server sustains")],
    seconds: Annotated[int, typer.Option(help="per load")] = 60,
    form: Annotated[str, typer.Option(help="of the codec, as in `python -m export`")] = "onnx",
    max_streams: Annotated[int, typer.Option(help="concurrent streams")] = 64,
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "vivian",
    max_frames: Annotated[int, typer.Option(help="of a request")] = 71,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--form", form)
    rates = f"{request_rate:g},{request_rate * OVERLOAD:g},{request_rate:g}"
    bench = ["bench", "--request-rate", rates, "--measurement-interval", seconds * 1000, "--artifact-dir", artifact_dir]
    bench += ["--warmup-request-count", WARM_UP, "--speaker", speaker, "--max-frames", max_frames]
    with server_of(checkpoint, max_streams, artifact_dir / "server.log", [], {"OVERLOAD": "refuse"}):
        run_bench(*bench)
    record = recorded(read_run(artifact_dir))
    show(record["rows"], console)
    console.print(f"normal again {record['normal_after_s']} s after the overload")
    if output:
        output.write_text(json.dumps(record, indent=1) + "\n")


def recorded(run: Run) -> dict[str, Any]:
    before, during, after = Load.all_of(run)
    return {
        **origin_of("scripts.benchmarks.overload", environment()),
        "settings": settings_of_environment(),
        "normal_after_s": normal_after(before, after),
        "rows": [load.row() for load in (before, during, after)],
    }


def normal_after(before: Load, after: Load) -> int:
    """Seconds from the end of the overload to the first without refusals and with normal first audio."""
    limit = NORMAL * (_percentile(before.first_audio_ms, 95) or 0)
    seconds = 0
    while (requests := after.sent_in(seconds)) and not _are_normal(requests, limit):
        seconds += 1
    return seconds


def _are_normal(requests: list[RequestRecord], limit_ms: float) -> bool:
    served = [_first_audio_ms(request) for request in requests if request.timeline.outcome == "ok"]
    return len(served) == len(requests) and float(np.median(served)) <= limit_ms


def _first_audio_ms(request: RequestRecord) -> float:
    return (request.timeline.arrivals_ns[0] - request.timeline.sent_ns) / MS


def _largest_stall_ms(request: RequestRecord) -> float:
    timeline = request.timeline
    return play(timeline.arrivals_ns, timeline.samples, timeline.sample_rate).largest_stall_ns / MS


def _percentile(values: list[float], q: float) -> float | None:
    return round(float(np.percentile(values, q)), 1) if values else None


if __name__ == "__main__":
    typer.run(main)
