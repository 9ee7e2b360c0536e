"""Benchmarks the codec's TensorRT plan alone, in Triton's own backend, and under mixed calls beside 64 streams.

    python -m scripts.benchmarks.tensorrt --checkpoint CHECKPOINT --artifact-dir artifacts/tensorrt \
        --backend FOLDER/tensorrt --output docs/benchmarks/tensorrt-h200.json

Exports the plan with the plugin in QWEN3_TTS_TENSORRT_PLUGIN. Writes the client's record and the server's log to the
folder.
"""

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from rich.console import Console
from tritonclient.grpc import service_pb2_grpc

from export.agreement import Agreement
from export.code2wav import version_folder
from export.forms.tensorrt_form import REPEATS, PlanCalls, shapes, tensorrt_form
from export.modules.codec import CodecStep
from export.tensorrt.process import TENSORRT_PYTHON, TensorRtSettings
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SpeechRequest
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.codec.contract import MAX_BATCH, call_shapes
from scripts.benchmarks.common import TEXT, first_audio_ms, origin, settings_of_environment
from scripts.benchmarks.serving import REPOSITORY, ROOT, read_summary, rows, run, run_bench, server_of

TIMED_BATCHES = (1, 8, 32, MAX_BATCH)
LOADS = "1,64"
STREAMS = "64"
MAX_STREAMS = 128
PROOF = re.compile(r"agrees with its golden cases: .*, ([\d.]+) s")
console = Console()


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    artifact_dir: Annotated[Path, typer.Option(help="a folder without a record")],
    backend: Annotated[Path, typer.Option(exists=True, file_okay=False, help="folder of the compiled backend")],
    output: Annotated[Path, typer.Option(help="JSON record")],
    calls: Annotated[int, typer.Option(help="of mixed shapes")] = 100_000,
    measurement_interval: Annotated[int, typer.Option(help="ms per load")] = 15_000,
    text: Annotated[str, typer.Option(help="for every request")] = TEXT,
    tensorrt_python: Annotated[Path, typer.Option(envvar=TENSORRT_PYTHON)] = Path(sys.executable),
    tensorrt_level: Annotated[int, typer.Option(min=0, max=5)] = 0,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--form", "tensorrt", "--tensorrt-level", tensorrt_level)
    plan = list(plan_rows(checkpoint, TensorRtSettings(tensorrt_python, tensorrt_level)))
    talk = ["--speaker", "vivian", "--max-frames", 71, "--text", text]
    log = artifact_dir / "server.log"
    with server_of(checkpoint, MAX_STREAMS, log, [backend]):
        first = first_requests(text)
        interval = ["--measurement-interval", measurement_interval, "--warmup-request-count", 8]
        bench = ["bench", "--concurrency", LOADS, *interval, *talk, "--artifact-dir", artifact_dir / "serving"]
        run_bench(*bench)
        with background_streams(*talk, "--artifact-dir", artifact_dir / "beside"):
            mixed = artifact_dir / "mixed.json"
            options = ["--checkpoint", checkpoint, "--calls", calls]
            run("scripts.benchmarks.mixed_calls", *options, "--output", mixed)
    record = recorded(plan, artifact_dir) | {"first_request": first, "proof_seconds": proof_seconds(log.read_text())}
    output.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"{output}: {len(plan)} shapes, {record['mixed_calls']}")


def recorded(plan: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The record in docs/benchmarks/ of a run whose records are in `folder`."""
    summary = read_summary(folder / "serving")
    engine = CodecManifest.read(version_folder(REPOSITORY)).engine
    assert engine is not None
    return {
        **origin("scripts.benchmarks.tensorrt", engine.gpu, summary["commit"]),
        "tensorrt": engine.version,
        "plugin": engine.plugin,
        "settings": settings_of_environment(),
        "plan": plan,
        "mixed_calls": json.loads((folder / "mixed.json").read_text()) | {"streams": int(STREAMS)},
        "serving": list(rows(summary["loads"])),
    }


def plan_rows(checkpoint: str, settings: TensorRtSettings) -> Iterator[dict[str, Any]]:
    """Time and agreement of a call of each shape."""
    form = tensorrt_form(settings)
    calls: PlanCalls = form.load(version_folder(REPOSITORY) / form.filename)
    agreement: dict[str, Agreement] = {}
    for outcome in form.verification(CodecStep.from_checkpoint(Checkpoint.open(checkpoint)), calls).run():
        agreement[outcome.name] = outcome.agreement.worst(agreement.get(outcome.name, outcome.agreement))
    for batch, frames in shapes():
        if batch in TIMED_BATCHES:
            microseconds = calls.process.microseconds(call_shapes(batch, frames), REPEATS)
            yield {
                "batch": batch,
                "frames": frames,
                "us_per_frame": round(microseconds / batch / frames, 1),
                "snr_db": round(agreement[f"{batch} x {frames}"].snr_db, 1),
            }


def first_requests(text: str) -> dict[str, float]:
    """Time to first audio, ms: of the first request once the server is ready, and the median of those that follow."""
    with grpc.insecure_channel("localhost:8001") as channel:
        grpc.channel_ready_future(channel).result()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        # A refused request takes the client's own start-up cost.
        with suppress(SpeechError):
            first_audio_ms(stub, SpeechRequest(text, speaker="nobody"))
            raise AssertionError("a speaker that the model does not have is served")
        first, *others = [first_audio_ms(stub, SpeechRequest(text, speaker="vivian", max_frames=20)) for _ in range(13)]
    return {"first_ms": round(first, 1), "median_ms": round(statistics.median(others), 1)}


@contextmanager
def background_streams(*options: object) -> Iterator[None]:
    """Runs STREAMS callers of the talker until the block ends."""
    command = ["qwen3_tts_client", "bench", "--concurrency", STREAMS, "--measurement-interval", 3_600_000, *options]
    process = subprocess.Popen([sys.executable, "-m", *map(str, command)], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        # Its record is not needed, and a background process may ignore SIGINT.
        process.terminate()
        process.wait()


def proof_seconds(log: str) -> float | None:
    """Duration of the codec proof in the server's log; None if absent."""
    found = PROOF.search(log)
    return float(found[1]) if found else None


if __name__ == "__main__":
    typer.run(main)
