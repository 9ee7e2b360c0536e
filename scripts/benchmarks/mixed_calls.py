"""Concurrent calls of code2wav with mixed shapes; compares each output with the FP32 PyTorch step.

    python -m scripts.benchmarks.mixed_calls --checkpoint CHECKPOINT --calls 10000

runs against a running server under any other load. States are in memory that the server maps, so that copying them does
not dominate; registering it requires the admin key (docs/operations.md). Exits with 1 if a call failed or an output was
wrong.
"""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, shared_memory

from export.agreement import compare
from export.modules.codec import CodecStep
from export.reference import Reference, RowPool
from qwen3_tts_engine.audio import CODEBOOK_SIZE
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import (
    CHUNK_FRAMES,
    CODES,
    HISTORY,
    MAX_BATCH,
    MODEL_NAME,
    STATE,
    STATE_OUT,
    WAVEFORM,
)
from scripts.embedded.protection import ADMIN_KEY_VARIABLE, GRPC_HEADER

REGION = "mixed_calls"
STATE_DTYPES = {"FP16": np.float16, "FP32": np.float32}
# Most calls have a few streams; one in ANY_EVERY has any number, one in STATES_EVERY requests the states too.
FEW, ANY_EVERY, STATES_EVERY = 8, 30, 50
# Calls of one caller before the next one replaces it.
PART = 100
UNMAP_SECONDS = 10.0
console = Console()


@dataclass(frozen=True)
class Rows:
    """Inputs and outputs of MAX_BATCH streams by chunk length, as NumPy arrays; states are the same for all."""

    state: np.ndarray
    history: np.ndarray
    codes: dict[int, np.ndarray]
    waveform: dict[int, np.ndarray]
    state_out: dict[int, np.ndarray]

    @classmethod
    def of(cls, step: CodecStep, dtype: type) -> "Rows":
        pool, every = RowPool(Reference(step), MAX_BATCH, np.random.default_rng(0)), np.arange(MAX_BATCH)
        batches = {frames: pool.batch(frames, every) for frames in CHUNK_FRAMES}
        named = {name: {f: getattr(b, name).cpu().numpy() for f, b in batches.items()} for name in PER_LENGTH}
        # The codec clamps codes out of range; backends that check values reject them.
        named["codes"] = {frames: codes.clip(0, CODEBOOK_SIZE - 1) for frames, codes in named["codes"].items()}
        first = batches[CHUNK_FRAMES[0]]
        return cls(first.state.cpu().numpy().astype(dtype), first.history.cpu().numpy(), **named)


PER_LENGTH = ("codes", "waveform", "state_out")


@dataclass
class Outcome:
    calls: int = 0
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    worst_db: float = float("inf")

    def add(self, other: "Outcome") -> None:
        self.calls += other.calls
        self.errors += other.errors
        self.wrong += other.wrong
        self.worst_db = min(self.worst_db, other.worst_db)


class Caller:
    """One caller, with a connection of its own."""

    def __init__(self, url: str, rows: Rows, limit_db: float, seed: int) -> None:
        self._client, self._rows, self._limit = InferenceServerClient(url), rows, limit_db
        self._random = random.Random(seed)
        self._dtype = "FP16" if rows.state.dtype == np.float16 else "FP32"

    def make(self, calls: int) -> Outcome:
        outcome = Outcome(calls)
        for _ in range(calls):
            any_number = self._random.randrange(ANY_EVERY) == 0
            count = self._random.randint(1, MAX_BATCH if any_number else FEW)
            self._call(self._random.randrange(MAX_BATCH), count, self._random.choice(CHUNK_FRAMES), outcome)
        return outcome

    def _call(self, first: int, count: int, frames: int, outcome: Outcome) -> None:
        """Calls with the rows from `first` on, wrapping around."""
        indices, rows = np.arange(first, first + count) % MAX_BATCH, self._rows
        names = [WAVEFORM, STATE_OUT] if self._random.randrange(STATES_EVERY) == 0 else [WAVEFORM]
        try:
            result = self._client.infer(
                MODEL_NAME, self._inputs(first, indices, frames), outputs=[InferRequestedOutput(n) for n in names]
            )
        except InferenceServerException as error:
            outcome.errors.append(f"{count} x {frames}: {error}")
            return
        expected = {WAVEFORM: rows.waveform[frames], STATE_OUT: rows.state_out[frames]}
        # Copied: PyTorch warns of the read-only arrays that Triton's client returns.
        pairs = [(torch.from_numpy(expected[name][indices]), torch.tensor(result.as_numpy(name))) for name in names]
        worst = min(compare(*pair).snr_db for pair in pairs)
        outcome.worst_db = min(outcome.worst_db, worst)
        if not worst >= self._limit:
            outcome.wrong.append(f"{count} x {frames}: {worst:.1f} dB")

    def _inputs(self, first: int, indices: np.ndarray, frames: int) -> list[Any]:
        row = self._rows.state[0].nbytes
        state = InferInput(STATE, [len(indices), self._rows.state.shape[1]], self._dtype)
        state.set_shared_memory(REGION, len(indices) * row, first * row)
        codes, history = self._rows.codes[frames][indices], self._rows.history[indices]
        return [_input(CODES, codes), state, _input(HISTORY, history)]


@contextmanager
def mapped(url: str, state: np.ndarray, admin_key: str) -> Iterator[None]:
    """Maps the states, twice in a row so that rows can wrap around, in the server."""
    twice, headers = np.concatenate([state, state]), {GRPC_HEADER: admin_key}
    handle = shared_memory.create_shared_memory_region(REGION, REGION, twice.nbytes)
    try:
        shared_memory.set_shared_memory_region(handle, [twice])
        with InferenceServerClient(url) as client:
            client.register_system_shared_memory(REGION, REGION, twice.nbytes, headers=headers)
            yield
            unmap(client, headers)
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def unmap(client: InferenceServerClient, headers: dict[str, str]) -> None:
    """Tries again while the server uses the region, which it does for a moment after its last response."""
    end = time.monotonic() + UNMAP_SECONDS
    while True:
        try:
            client.unregister_system_shared_memory(REGION, headers=headers)
            return
        except InferenceServerException as error:
            if "in use" not in error.message() or time.monotonic() > end:
                raise
        time.sleep(0.05)


def run(url: str, admin_key: str, rows: Rows, calls: int, callers: int, limit_db: float) -> Outcome:
    """Distributes the calls over the callers."""
    parts, total = [PART] * (calls // PART) + [calls % PART], Outcome()
    with mapped(url, rows.state, admin_key), Progress(console=console) as progress, ThreadPoolExecutor(callers) as pool:
        task = progress.add_task("calls", total=calls)
        found = [pool.submit(Caller(url, rows, limit_db, seed).make, part) for seed, part in enumerate(parts)]
        for outcome in as_completed(found):
            total.add(outcome.result())
            progress.update(task, completed=total.calls)
    return total


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id that the server's codec was exported from")],
    state_dtype: Annotated[str, typer.Option(help="of model.json: FP16, or FP32 for the form onnx")] = "FP16",
    url: Annotated[str, typer.Option("--url", "-u", help="gRPC endpoint")] = "localhost:8001",
    admin_key: Annotated[str, typer.Option(envvar=ADMIN_KEY_VARIABLE, help="of the server")] = "",
    calls: Annotated[int, typer.Option(min=1)] = 10_000,
    callers: Annotated[int, typer.Option(min=1)] = 8,
    limit_db: Annotated[float, typer.Option(help="lowest SNR of a correct row")] = 30.0,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    rows = Rows.of(CodecStep.from_checkpoint(Checkpoint.open(checkpoint)), STATE_DTYPES[state_dtype])
    started = time.monotonic()
    outcome = run(url, admin_key, rows, calls, callers, limit_db)
    seconds = time.monotonic() - started
    found = {
        "calls": outcome.calls,
        "callers": callers,
        "errors": len(outcome.errors),
        "wrong": len(outcome.wrong),
        "worst_snr_db": round(outcome.worst_db, 1),
        "calls_per_s": round(outcome.calls / seconds),
    }
    console.print(found, *outcome.errors[:3], *outcome.wrong[:10])
    if output:
        output.write_text(json.dumps(found, indent=1) + "\n")
    raise typer.Exit(bool(outcome.errors or outcome.wrong))


def _input(name: str, array: np.ndarray) -> Any:
    tensor = InferInput(name, array.shape, "INT32")
    tensor.set_data_from_numpy(array)
    return tensor


if __name__ == "__main__":
    typer.run(main)
