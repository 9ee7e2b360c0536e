"""Milliseconds a frame of a talker on a CPU, its memory, and the error of its logits, by the precision of its weights.

    python -m scripts.benchmarks.cpu_sizes --folder FOLDER --threads 16 --output docs/benchmarks/cpu-sizes.json

One stream in the runner alone, without a server. Checkpoints are those of FOLDER, where missing ones are written with
random weights. `rtf` includes the codec's call where its export is given. `memory_gib` is what the process has of its
own after the ticks, `peak_gib` the most while it loads, with the checkpoint's mapped file.
"""

import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast
from unittest.mock import patch

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor

from code2wav_step.onnx_runner import OnnxStepRunner
from qwen3_tts_client.records.environment import environment
from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.checkpoint.checkpoint import WEIGHTS, Checkpoint
from qwen3_tts_engine.config import CpuWeights, EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.request import Sampling
from qwen3_tts_engine.talker import cpu, onnx_runner
from qwen3_tts_engine.talker.golden import FRAMES, Cases, distance, drive
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.memory_plan import GIB
from qwen3_tts_engine.talker.onnx_programs import frame_graph
from qwen3_tts_engine.talker.onnx_runner import OnnxTalkerRunner
from scripts.benchmarks.common import NullSink, origin_of, show
from scripts.synthetic.checkpoint import make_checkpoint
from scripts.synthetic.configs import Size

WARMUP, TICKS, CODEC_CALLS = 5, 100, 20
PROMPT_ROWS = 60
# Prompts of so many rows, FRAMES frames each, of which logits are compared.
COMPARED_ROWS = tuple(range(16, 128, 7))
SAMPLED = Sampling(
    temperature=0.9, top_k=50, top_p=1, repetition_penalty=1.05, predictor_temperature=0.9, predictor_top_k=50,
    predictor_top_p=1, seed=0,
)  # fmt: skip
SHOWN = ("model", "weights", "tick_ms", "rtf", "memory_gib", "equal_codes", "logits_distance")
console = Console()


@dataclass(frozen=True)
class Spoken:
    """Greedy codes int64 [frames, codebooks] and their logits, float32 [frames, codebooks, codes]."""

    codes: Tensor
    logits: Tensor


def main(
    folder: Annotated[Path, typer.Option(help="of the checkpoints, each in a folder named as its size")],
    sizes: Annotated[str, typer.Option(help="0.6b, 1.7b, tiny")] = "0.6b,1.7b",
    weights: Annotated[str, typer.Option(help="values of cpu_weights; the first is what others are compared with")] = (
        "float32,int8"
    ),
    threads: Annotated[int, typer.Option(min=0, help="of the talker; 0 takes all cores")] = 0,
    codec: Annotated[Path | None, typer.Option(help="from python -m export --build-only FILE")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    machine, threads = environment(), threads or cpu.cores()
    codec_ms = in_process(codec_call_ms, codec) if codec else None
    rows: list[dict[str, Any]] = []
    for size in sizes.split(","):
        path = checkpoint_of(folder, cast(Size, size))
        exact: Spoken | None = None
        for precision in weights.split(","):
            figures, spoken = in_process(measure, path, cast(CpuWeights, precision), threads)
            exact = exact or spoken
            rtf = (figures["tick_ms"] + (codec_ms or 0.0)) / (1e3 * FRAME_SECONDS)
            figures |= {"codec_ms": codec_ms, "rtf": round(rtf, 3), **agreement(spoken, exact)}
            rows.append({"model": size, "weights": precision, "threads": threads, **figures})
            if output:
                output.write_text(json.dumps(record(machine, rows), indent=1) + "\n")
    show([{name: row[name] for name in SHOWN} for row in rows], console)


def record(machine: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    settings = {"prompt_rows": PROMPT_ROWS, "ticks": TICKS, "sampling": "temperature 0.9, top_k 50, both stages"}
    settings |= {"compared_frames": FRAMES * len(COMPARED_ROWS), "packages": machine["packages"]}
    return origin_of("scripts.benchmarks.cpu_sizes", machine) | {"settings": settings, "rows": rows}


def checkpoint_of(folder: Path, size: Size) -> Path:
    path = folder / size
    return path if (path / WEIGHTS).is_file() else make_checkpoint(path, size, "custom_voice")


def in_process(function: Any, *given: Any) -> Any:
    """In a process of its own, whose memory is that of one talker."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


@torch.inference_mode()
def measure(path: Path, weights: CpuWeights, threads: int) -> tuple[dict[str, Any], Spoken]:
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    torch.set_num_threads(threads)
    checkpoint = Checkpoint.open(str(path))
    started = time.perf_counter()
    runner, kept = load(checkpoint, weights)
    load_seconds = time.perf_counter() - started
    prefill_ms, ticks = speak(runner, checkpoint)
    figures = {
        "tick_ms": round(1e3 * float(np.mean(ticks)), 2),
        "tick_p95_ms": round(1e3 * float(np.percentile(ticks, 95)), 2),
        "prefill_ms": round(prefill_ms, 1),
        "load_s": round(load_seconds, 1),
        "memory_gib": round(resident_gib("RssAnon"), 2),
        "peak_gib": round(resident_gib("VmHWM"), 2),
        "needed_gib": round(cpu.needed_bytes(checkpoint, weights) / GIB, 2),
    }
    return figures, compared(runner, checkpoint, kept)


def load(checkpoint: Checkpoint, weights: CpuWeights) -> tuple[OnnxTalkerRunner, "KeptLogits"]:
    """The runner without its proof, which would take memory of its own, and the logits of its frames."""
    config = EngineConfig(
        checkpoint=str(checkpoint.folder), max_streams=len(COMPARED_ROWS), max_text_tokens=256, max_frames_limit=512,
        kernels="required", cpu_weights=weights, talker_proof_seconds=0,
    )  # fmt: skip
    with patch.object(onnx_runner, "frame_graph", partial(frame_graph, with_logits=True)):
        runner = load_runner(checkpoint, config, torch.device("cpu"))
    assert isinstance(runner, OnnxTalkerRunner)
    kept = KeptLogits(runner._frame_program)
    runner._frame_program = cast(Any, kept)
    return runner, kept


class KeptLogits:
    """A frame's program that keeps the logits of its last run, [codebooks, rows, codes]."""

    def __init__(self, program: Any) -> None:
        self._program, self.logits = program, np.empty(0)

    def run(self, outputs: tuple[str, ...], inputs: Any) -> list[np.ndarray]:
        found: list[np.ndarray] = self._program.run((*outputs, "logits"), inputs)
        self.logits = found.pop()
        return found


def speak(runner: OnnxTalkerRunner, checkpoint: Checkpoint) -> tuple[float, np.ndarray]:
    """Milliseconds from a prompt to its first frame, and seconds of each tick after it, of one stream."""
    [prompt] = Cases.of(checkpoint.config, [PROMPT_ROWS]).prompts
    count, slots = -(-(PROMPT_ROWS + WARMUP + TICKS) // runner.limits.page_size), np.array([0])
    stream = Stream("0", prompt, SAMPLED, TICKS, NullSink())
    for _ in range(2):
        started = time.perf_counter()
        assert not runner.prefill([Newcomer(stream, 0, list(range(count)))])
        runner.collect(runner.launch(slots))
        first = time.perf_counter() - started
    stamps = [time.perf_counter()]
    for _ in range(WARMUP + TICKS - 1):
        runner.collect(runner.launch(slots))
        stamps.append(time.perf_counter())
    return 1e3 * first, np.diff(stamps)[WARMUP - 1 :]


def compared(runner: OnnxTalkerRunner, checkpoint: Checkpoint, kept: KeptLogits) -> Spoken:
    """Frames that follow from codes that are the same for all weights."""
    cases = Cases.of(checkpoint.config, COMPARED_ROWS)
    codes, logits = [], []
    for tick in drive(runner, cases, range(len(COMPARED_ROWS)), joins=False):
        codes.append(torch.from_numpy(tick.codes.copy()))
        logits.append(torch.from_numpy(kept.logits).transpose(0, 1))
    return Spoken(torch.cat(codes), torch.cat(logits))


def agreement(found: Spoken, expected: Spoken) -> dict[str, Any]:
    """Share of equal codes and distance of logits, relative to their norm, of codes that follow from equal ones."""
    equal = found.codes == expected.codes
    before = torch.cat([torch.ones_like(equal[:, :1]), equal[:, :-1]], dim=1)
    follows = before.cumprod(1).bool()
    first = distance(found.logits[:, 0], expected.logits[:, 0])
    away = distance(found.logits[follows], expected.logits[follows])
    return {
        "equal_codes": round(float(equal[follows].float().mean()), 4),
        "logits_distance": round(away, 4),
        "first_logits_distance": round(first, 4),
        "codes": int(follows.sum()),
    }


def resident_gib(name: str) -> float:
    """A figure of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024 / GIB


def codec_call_ms(path: Path) -> float:
    """Milliseconds of the codec's call for one frame of one stream with a full window, as code2wav makes it."""
    runner = OnnxStepRunner(path)
    config = runner.config
    rows = runner.new_rows()
    places = rows.open(np.array([[0, config.contract.num_rows - 1, config.window, 0]], np.int32))
    codes = np.random.default_rng(0).integers(0, config.codebook_size, (1, 1, config.num_quantizers), np.int32)
    times = []
    for _ in range(CODEC_CALLS):
        started = time.perf_counter()
        runner.decode(codes, rows, places)
        times.append(time.perf_counter() - started)
    return round(1e3 * float(np.mean(times[WARMUP:])), 2)


if __name__ == "__main__":
    typer.run(main)
