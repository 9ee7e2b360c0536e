"""Profiles a tick: kernels, gaps between them, and the host.

    python -m scripts.lab.profile_tick --checkpoint CHECKPOINT --batches 32,256
    python -m scripts.lab.profile_tick --checkpoint CHECKPOINT --concurrency 64,256

The second starts a server, and prints the share of the time in which the GPU runs graphs of the talker, of the codec,
of both and of neither.
"""

import re
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import TalkerConfig, TransformerConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.startup import choose_device
from qwen3_tts_engine.talker.graph_runner import GraphTalkerRunner
from qwen3_tts_engine.talker.loader import load_runner
from scripts.benchmarks.common import show as show_rows
from scripts.benchmarks.talker import newcomer, settings
from scripts.lab import gpu_share

# Measured on one H200: bytes and bfloat16 operations per second.
BYTES_PER_SECOND, FLOPS_PER_SECOND = 4.3e12, 790e12
TICKS = 20
console = Console(width=120)


@dataclass
class Kernel:
    name: str
    start_us: float
    end_us: float


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    batches: Annotated[str, typer.Option(help="batch sizes")] = "1,8,64",
    newcomers: Annotated[str, typer.Option(help="numbers of prompts that are prefilled in a tick")] = "0",
    rows: Annotated[int, typer.Option(help="kernels to list")] = 14,
    concurrency: Annotated[
        str | None, typer.Option(help="closed loops through a server: the busy share of each process, no kernels")
    ] = None,
    artifact_dir: Annotated[Path, typer.Option(help="of --concurrency: a folder without a record")] = Path(
        "artifacts/gpu-share"
    ),
) -> None:
    if concurrency:
        streams = [int(count) for count in concurrency.split(",")]
        show_rows(gpu_share.measure(checkpoint, streams, artifact_dir), console)
        return
    sizes = [int(size) for size in batches.split(",")]
    counts = [int(count) for count in newcomers.split(",")]
    config = settings(checkpoint, max(sizes) + max(counts))
    opened = Checkpoint.open(checkpoint)
    runner = load_runner(opened, config, choose_device(config, "cuda:0"))
    assert isinstance(runner, GraphTalkerRunner)
    prompts = PromptBuilder(opened, config)
    for size in sizes:
        slots = np.arange(size)
        runner.prefill([newcomer(runner, prompts, slot) for slot in slots])
        for _ in range(30):
            runner.collect(runner.launch(slots))
        host_us = host_microseconds(runner, slots)
        for count in counts:
            arriving = [newcomer(runner, prompts, size + i) for i in range(count)]
            title = f"batch {size}" + f" with {count} prompts" * (count > 0)
            show(title, traced(runner, slots, arriving), host_us, floor_ms(opened.config.talker_config, size), rows)


def host_microseconds(runner: GraphTalkerRunner, slots: np.ndarray) -> float:
    """Host time to launch a tick while the one before it runs."""
    spent, running = 0.0, runner.launch(slots)
    for _ in range(TICKS):
        start = time.perf_counter()
        launched = runner.launch(slots)
        spent += time.perf_counter() - start
        runner.collect(running)
        running = launched
    runner.collect(running)
    return spent / TICKS * 1e6


def traced(runner: GraphTalkerRunner, slots: np.ndarray, newcomers: list[Newcomer]) -> list[Kernel]:
    """Kernels of TICKS ticks of `slots`, each with the prefill of `newcomers`, which have other slots."""
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(TICKS):
            if newcomers:
                runner.prefill(newcomers)
            runner.collect(runner.launch(slots))
        torch.cuda.synchronize()
    events = (e for e in trace.events() if e.device_type == DeviceType.CUDA)
    return [Kernel(e.name, e.time_range.start, e.time_range.end) for e in events if "Mem" not in e.name]


def show(title: str, kernels: list[Kernel], host_us: float, floor: float, rows: int) -> None:
    """Kernels by their share; a kernel that overlaps its predecessor counts from the predecessor's end."""
    spent: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    busy_until, busy, gaps = 0.0, 0.0, 0.0
    for kernel in sorted(kernels, key=lambda k: k.start_us):
        own = max(0.0, kernel.end_us - max(kernel.start_us, busy_until))
        gap = kernel.start_us - busy_until
        gaps += gap if 0 < gap < 50 else 0
        busy += own
        spent[shorten(kernel.name)] += own
        counts[shorten(kernel.name)] += 1
        busy_until = max(busy_until, kernel.end_us)
    table = Table("kernel", "per tick", "µs each", "ms/tick", "share", title=title)
    for name, us in sorted(spent.items(), key=lambda item: -item[1])[:rows]:
        count = counts[name]
        table.add_row(name, f"{count / TICKS:.0f}", f"{us / count:.2f}", f"{us / TICKS / 1e3:.3f}", f"{us / busy:.0%}")
    console.print(table)
    console.print(
        f"{title}: kernels {busy / TICKS / 1e3:.3f} ms, gaps {gaps / TICKS / 1e3:.3f} ms, "
        f"host {host_us:.0f} µs, floor {floor:.3f} ms"
    )


def shorten(name: str) -> str:
    name = re.sub(r"^void |<.*|\(.*", "", name)
    return name[-60:]


def floor_ms(config: TalkerConfig, batch: int, context: int = 100) -> float:
    """max(bytes, operations) of talker and predictor for one frame."""
    predictor = config.code_predictor_config
    talker_weights = stack_weights(config) + config.hidden_size * config.vocab_size
    head = predictor.hidden_size * predictor.vocab_size
    later = config.num_code_groups - 1
    per_token = 4 * config.num_hidden_layers * config.key_value_size
    talker = bound(2 * talker_weights + batch * context * per_token, 2 * talker_weights * batch)
    positions = config.num_code_groups * stack_weights(predictor) + later * head
    return 1e3 * (talker + bound(2 * later * (stack_weights(predictor) + head), 2 * positions * batch))


def stack_weights(config: TransformerConfig) -> int:
    """Elements of the layers' projections."""
    attention = config.hidden_size * (2 * config.query_size + 2 * config.key_value_size)
    return config.num_hidden_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def bound(num_bytes: float, operations: float) -> float:
    return max(num_bytes / BYTES_PER_SECOND, operations / FLOPS_PER_SECOND)


if __name__ == "__main__":
    typer.run(main)
