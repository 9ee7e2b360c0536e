"""What a cancel costs: how much longer a request waits for the slot of a cancelled stream than for a free one.

    python -m scripts.benchmarks.cancels --checkpoint CHECKPOINT --artifact-dir artifacts/cancels

All slots have long utterances, of which the oldest is cancelled each time. Until the server has seen the cancel, the
GPU goes on with the utterance: for one stream that is the GPU's time, for n streams an n-th of it.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
import typer
from rich.console import Console
from tritonclient.grpc import service_pb2_grpc

from qwen3_tts_client.protocol import AudioChunk, SpeechRequest, encode
from qwen3_tts_client.records.environment import environment
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_client.sync_stream import speak
from scripts.benchmarks.common import TEXT, origin_of, show
from scripts.benchmarks.serving import REPOSITORY, run, server_of

Stream = Generator[tuple[int, AudioChunk], None, None]
MAX_FRAMES = 4096
# A request waits for a slot, or a slot for a request, for a time that has nothing to do with that of the checks.
PAUSE_S = (0.05, 0.15)
console = Console()


def main(
    checkpoint: Annotated[str, typer.Option(help="of scripts.synthetic.checkpoint --endless")],
    artifact_dir: Annotated[Path, typer.Option(help="for the servers' logs")],
    form: Annotated[str, typer.Option(help="of the codec, as in `python -m export --form`")] = "python",
    streams: Annotated[str, typer.Option(help="numbers of slots")] = "1,64",
    cancels: Annotated[int, typer.Option(help="of each kind")] = 20,
    kv_cache_gib: Annotated[float, typer.Option(help="for long utterances")] = 32,
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "vivian",
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", form)
    found: list[dict[str, Any]] = []
    for count in map(int, streams.split(",")):
        log, cache = artifact_dir / f"server-{count}.log", {"KV_CACHE_GIB": str(kv_cache_gib)}
        with (
            server_of(checkpoint, count, log, [], cache) as server,
            grpc.insecure_channel(f"localhost:{server.ports.grpc}") as channel,
        ):
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            found += measure(partial(open_stream, stub, speaker), count, cancels)
    show(found, console)
    if output:
        machine = environment()
        settings = {"codec": form, "text": TEXT, "packages": machine["packages"]}
        record = {**origin_of("scripts.benchmarks.cancels", machine), "settings": settings, "rows": found}
        output.write_text(json.dumps(record, indent=1) + "\n")


def open_stream(stub: service_pb2_grpc.GRPCInferenceServiceStub, speaker: str, seed: int) -> Stream:
    message = encode(SpeechRequest(TEXT, speaker=speaker, seed=seed, max_frames=MAX_FRAMES))
    return speak(stub, [message], Timeouts(600, 60))


def measure(start: Callable[[int], Stream], slots: int, cancels: int) -> Iterator[dict[str, Any]]:
    """Rows for free slots and for slots of cancelled streams, in turn. `start` opens a stream with a seed."""
    running = deque(start(seed) for seed in range(slots))
    for stream in running:
        next(stream)
    pauses = np.random.default_rng(0).uniform(*PAUSE_S, (cancels, 2)).tolist()
    free, cancelled = [], []
    for number, (wait, rest) in enumerate(pauses):
        seed = slots + 2 * number
        running.popleft().close()
        time.sleep(rest)
        free.append(first_audio_ms(running, start(seed)))
        cancelled.append(first_audio_ms(running, start(seed + 1), wait))
    for stream in running:
        stream.close()
    yield row(slots, "free", free)
    yield row(slots, "of a cancelled stream", cancelled)


def first_audio_ms(running: deque[Stream], stream: Stream, wait: float | None = None) -> float:
    """First audio of `stream` after its request, or after the cancel of the oldest stream `wait` seconds later."""
    arrivals: list[int] = []
    reader = threading.Thread(target=lambda: arrivals.append(next(stream)[0]))
    started = time.perf_counter_ns()
    reader.start()
    if wait is not None:
        time.sleep(wait)
        assert not arrivals, "a slot was free"
        started = time.perf_counter_ns()
        running.popleft().close()
    reader.join()
    running.append(stream)
    return (arrivals[0] - started) / 1e6


def row(slots: int, slot: str, times: list[float]) -> dict[str, Any]:
    p50, p95 = np.percentile(times, [50, 95])
    row = {"streams": slots, "slot": slot, "requests": len(times)}
    return row | {"p50_ms": round(p50, 1), "p95_ms": round(p95, 1), "max_ms": round(max(times), 1)}


if __name__ == "__main__":
    typer.run(main)
