"""Time to first audio with a reference that the server has not met, and with one that it has.

    python -m scripts.benchmarks.references --checkpoint BASE_CHECKPOINT --artifact-dir artifacts/references

Exports the codec and the encoders, starts a server, and sends one request after the other: in context (the prompt holds
the reference's text and codes) and with the speaker's vector alone. References are noise: only their length costs time.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
import typer
from rich.console import Console
from tritonclient.grpc import service_pb2_grpc

from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest
from qwen3_tts_client.records.environment import environment
from scripts.benchmarks.common import TEXT, first_audio_ms, origin_of, settings_of_environment, show
from scripts.benchmarks.serving import REPOSITORY, run, server_of

WHOLE = SpeechRequest(TEXT, ref_sample_rate=SAMPLE_RATE, max_frames=20)
KINDS = {
    "in context": replace(WHOLE, ref_text="My parcel has not arrived, and I would like to know where it is."),
    "x-vector": replace(WHOLE, x_vector_only=True),
}
MAX_STREAMS, WARM_UP = 64, 3
console = Console()


def main(
    checkpoint: Annotated[str, typer.Option(help="of a Base model: folder or hub id")],
    artifact_dir: Annotated[Path, typer.Option(help="for the server's log and its voices")],
    form: Annotated[str, typer.Option(help="of codec and encoders, as in `python -m export --form`")] = "python",
    seconds: Annotated[float, typer.Option(help="of a reference")] = 6.6,
    requests: Annotated[int, typer.Option(help="of each kind")] = 30,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", form)
    voices = {"VOICES_FOLDER": str(artifact_dir.resolve() / "voices")}
    with (
        server_of(checkpoint, MAX_STREAMS, artifact_dir / "server.log", [], voices) as server,
        grpc.insecure_channel(f"localhost:{server.ports.grpc}") as channel,
    ):
        rows = measure(service_pb2_grpc.GRPCInferenceServiceStub(channel), requests, seconds)
    show(rows, console)
    if output:
        machine = environment()
        settings = {"codec": form, "seconds": seconds, "text": TEXT, "environment": settings_of_environment()}
        record = {
            **origin_of("scripts.benchmarks.references", machine),
            "settings": settings | {"packages": machine["packages"]},
            "rows": rows,
        }
        output.write_text(json.dumps(record, indent=1) + "\n")


def measure(stub: service_pb2_grpc.GRPCInferenceServiceStub, requests: int, seconds: float) -> list[dict[str, Any]]:
    """The kinds in turn, so that a change of the machine affects all of them."""
    found: dict[tuple[str, str], list[float]] = {(kind, met): [] for kind in KINDS for met in ("new", "again")}
    for index in range(-WARM_UP, requests):
        for number, (kind, request) in enumerate(KINDS.items()):
            seed = len(KINDS) * (index + WARM_UP) + number
            request = replace(request, seed=seed, ref_audio=noise(seconds, seed))
            for met in ("new", "again"):
                first_ms = first_audio_ms(stub, request)
                if index >= 0:
                    found[kind, met].append(first_ms)
    return [row(kind, met, times) for (kind, met), times in found.items()]


def noise(seconds: float, seed: int) -> np.ndarray:
    """A reference, float32 in -1..1."""
    return np.random.default_rng(seed).uniform(-0.3, 0.3, round(seconds * SAMPLE_RATE)).astype(np.float32)


def row(kind: str, met: str, times: list[float]) -> dict[str, Any]:
    p50, p95 = np.percentile(times, [50, 95])
    return {"reference": f"{met}, {kind}", "requests": len(times), "p50_ms": round(p50, 1), "p95_ms": round(p95, 1)}


if __name__ == "__main__":
    typer.run(main)
