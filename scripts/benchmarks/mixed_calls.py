"""Concurrent calls of code2wav with mixed shapes; compares all samples with the FP32 PyTorch step.

    python -m scripts.benchmarks.mixed_calls --checkpoint CHECKPOINT --calls 10000

runs against a running server under any other load. Each caller decodes utterances in rows of its own, which the next
run takes again: start one at a time. Exits with 1 if a call failed or an output was wrong.
"""

import json
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from export.golden import make_golden
from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec import client as codec_client
from qwen3_tts_engine.codec.calls import ProofCall, Utterances
from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.codec.contract import (
    CHUNK_FRAMES,
    MAX_BATCH,
    RowCounts,
    max_history,
)
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.codec.proof import mean_square, snr_db
from qwen3_tts_engine.codec.row_calls import RowCalls
from qwen3_tts_engine.codec.rows import owner_key
from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.request import RequestError

# Utterances are longer than the transformer's window of 72 frames.
UTTERANCES, FRAMES = 16, 96
# Most calls have a few streams; one in ANY_EVERY has any number.
FEW, ANY_EVERY = 8, 30
console = Console()


@dataclass
class Outcome:
    calls: int = 0
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    worst_db: float = math.inf

    def add(self, other: "Outcome") -> None:
        self.calls += other.calls
        self.errors += other.errors
        self.wrong += other.wrong
        self.worst_db = min(self.worst_db, other.worst_db)


class Caller:
    """One caller with MAX_BATCH streams, each in a row of its own."""

    def __init__(self, call: codec_client.Call, golden: Golden, window: int, seed: int) -> None:
        """Callers with the same seed have the same rows. Raises RequestError when there are too few."""
        key, counts = owner_key(f"{__name__} {seed}"), RowCounts(MAX_BATCH, 0)
        self._codec = Code2Wav(call, key, counts, window, CHUNK_FRAMES[-1])
        self._codec.claim()
        self._utterances, self._limit = Utterances(golden, MAX_BATCH), golden.snr_db
        self._random = random.Random(seed)

    def make(self, calls: int, progress: Callable[[], None] = lambda: None) -> Outcome:
        outcome = Outcome(calls)
        for _ in range(calls):
            any_number = self._random.randrange(ANY_EVERY) == 0
            rows = self._random.randint(1, MAX_BATCH if any_number else FEW)
            self._call(ProofCall(rows, self._random.choice(CHUNK_FRAMES)), outcome)
            progress()
        return outcome

    def _call(self, call: ProofCall, outcome: Outcome) -> None:
        utterances = self._utterances
        slots = utterances.choose(call)
        try:
            pcm, failed = self._codec.decode(utterances.chunks(slots, call.frames))
        except RequestError as error:
            outcome.errors.append(f"{call}: {error}")
            utterances.restart(slots)
            return
        differences: np.ndarray = pcm - utterances.expected(slots, call.frames).astype(np.float64)
        snr = snr_db(utterances.loudness(slots), mean_square(differences))
        snr[list(failed)] = -math.inf
        outcome.worst_db = min(outcome.worst_db, float(snr.min()))
        is_right = snr >= self._limit
        if failed:
            outcome.errors.append(f"{call}: {next(iter(failed.values()))}")
        elif not is_right.all():
            outcome.wrong.append(f"{call}: {snr.min():.1f} dB")
        utterances.advance(slots, call.frames)
        # Later calls must not inherit the error.
        utterances.restart(slots[~is_right])


def connect(url: str) -> codec_client.Call:
    """Calls of the server's code2wav by a connection of its own."""
    return RowCalls(partial(call_model, InferenceServerClient(url)), lambda model: nullcontext(), None).call


def call_model(client: InferenceServerClient, call: ModelCall) -> list[np.ndarray]:
    """interfaces.CallModel, by gRPC."""
    inputs = []
    for name, array in call.inputs.items():
        inputs.append(InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    try:
        result = client.infer(call.model, inputs, outputs=[InferRequestedOutput(name) for name in call.outputs])
    except InferenceServerException as error:
        raise RequestError(str(error)) from None
    return [result.as_numpy(name) for name in call.outputs]


def run(callers: Sequence[Caller], calls: int) -> Outcome:
    """Distributes the calls over the callers."""
    each, rest = divmod(calls, len(callers))
    shares, total = [each + (number < rest) for number in range(len(callers))], Outcome()
    with Progress(console=console) as progress, ThreadPoolExecutor(len(callers)) as pool:
        advance = partial(progress.advance, progress.add_task("calls", total=calls))
        for outcome in pool.map(lambda caller, share: caller.make(share, advance), callers, shares):
            total.add(outcome)
    return total


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id that the server's codec was exported from")],
    url: Annotated[str, typer.Option("--url", "-u", help="gRPC endpoint")] = "localhost:8001",
    calls: Annotated[int, typer.Option(min=1)] = 10_000,
    callers: Annotated[int, typer.Option(min=1)] = 8,
    limit_db: Annotated[float, typer.Option(help="lowest SNR of a correct row")] = 30.0,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    step = CodecStep.from_checkpoint(Checkpoint.open(checkpoint))
    golden, window = make_golden(step, "", limit_db, UTTERANCES, FRAMES), max_history(step.config)
    try:
        together = [Caller(connect(url), golden, window, seed) for seed in range(callers)]
    except RequestError as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None
    started = time.monotonic()
    outcome = run(together, calls)
    seconds = time.monotonic() - started
    found = {
        "calls": outcome.calls,
        "callers": callers,
        "errors": len(outcome.errors),
        "wrong": len(outcome.wrong),
        "worst_snr_db": round(outcome.worst_db, 1) if math.isfinite(outcome.worst_db) else None,
        "calls_per_s": round(outcome.calls / seconds),
    }
    console.print(found, *outcome.errors[:3], *outcome.wrong[:10])
    if output:
        output.write_text(json.dumps(found, indent=1) + "\n")
    raise typer.Exit(bool(outcome.errors or outcome.wrong))


if __name__ == "__main__":
    typer.run(main)
