"""Milliseconds per frame of the talker and code predictor, by batch size, on a CUDA device."""

import json
import os
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from qwen3_tts_client.records.environment import commit
from qwen3_tts_engine.checkpoint.alignment import LAYOUTS, Alignment, AlignmentHeads
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.startup import choose_device
from qwen3_tts_engine.talker.graph_runner import GraphTalkerRunner
from qwen3_tts_engine.talker.loader import load_runner
from scripts.benchmarks.common import NullSink, origin, settings_of_environment, show

console = Console()
FRAMES = 70


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    batches: Annotated[str, typer.Option(help="batch sizes")] = "1,2,4,8,16,32,64,128,256",
    repeats: Annotated[int, typer.Option(help="runs of 70 frames; reports the median")] = 5,
    attention_warps: Annotated[
        int | None, typer.Option(min=1, max=8, help="of a block that attends over pages, not those served")
    ] = None,
    word_times: Annotated[
        bool, typer.Option("--word-times", help="streams with word times, from any six heads")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    sizes = [int(size) for size in batches.split(",")]
    if attention_warps:
        # Imports what a machine without a GPU may lack.
        from qwen3_tts_engine.talker.ops import kernel_ops

        kernel_ops.FRAMES_WARPS = {max(sizes): attention_warps}
    config = settings(checkpoint, max(sizes))
    device = choose_device(config, "cuda:0")
    opened = Checkpoint.open(checkpoint)
    started = time.perf_counter()
    alignment = any_heads(opened) if word_times else None
    runner = load_runner(opened, config, device, alignment)
    assert isinstance(runner, GraphTalkerRunner)
    console.print(f"loaded and captured in {time.perf_counter() - started:.1f} s")
    prompts = PromptBuilder(opened, config, alignment)
    rows = [measure(runner, prompts, size, repeats, word_times=word_times) for size in sizes]
    record = {**environment(opened), "rows": rows}
    show(rows, console)
    if output:
        output.write_text(json.dumps(record, indent=1) + "\n")


def settings(checkpoint: str, max_streams: int) -> EngineConfig:
    """Settings of the measured runner; the environment can set others (config.py)."""
    fixed = {"checkpoint": checkpoint, "max_streams": str(max_streams), "max_frames_limit": "512"}
    return EngineConfig.from_parameters(fixed, {"QWEN3_TTS_KERNELS": "required"} | os.environ)


def any_heads(checkpoint: Checkpoint) -> Alignment:
    """As many as are chosen at most, each of another layer."""
    layers = np.linspace(0, checkpoint.config.talker_config.num_hidden_layers - 1, 6).astype(int).tolist()
    heads = AlignmentHeads(
        heads=[(layer, 0) for layer in sorted(set(layers))], advance=[0.5, 0.3, 0.15, 0.05], scores={}
    )
    return Alignment(talker_digest=checkpoint.talker_digest, layouts=dict.fromkeys(LAYOUTS, heads))


def measure(
    runner: GraphTalkerRunner, prompts: PromptBuilder, batch: int, repeats: int, *, word_times: bool = False
) -> dict[str, Any]:
    """Median over runs of the median tick, and of the time from an idle engine to the first frame on the host."""
    first, ticks, device = zip(
        *(run(runner, prompts, batch, word_times=word_times) for _ in range(repeats)), strict=True
    )
    return {
        "batch": batch,
        "ms_per_frame": round(statistics.median(ticks), 3),
        "device_ms_per_frame": round(statistics.median(device), 3),
        "prefill_to_first_frame_ms": round(statistics.median(first), 3),
    }


def run(
    runner: GraphTalkerRunner, prompts: PromptBuilder, batch: int, *, word_times: bool = False
) -> tuple[float, float, float]:
    """(ms to the first frame, median ms of the ticks after it, mean ms of a tick on the device) of one utterance."""
    newcomers = [newcomer(runner, prompts, slot, word_times=word_times) for slot in range(batch)]
    slots = np.arange(batch)
    torch.cuda.synchronize()
    start = time.perf_counter()
    runner.prefill(newcomers)
    runner.collect(runner.launch(slots))
    first = time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launched, stamps = runner.launch(slots), []
    for _ in range(FRAMES - 2):
        next_tick = runner.launch(slots)
        runner.collect(launched)
        launched = next_tick
        stamps.append(time.perf_counter())
    runner.collect(launched)
    end.record()
    end.synchronize()
    ticks = np.diff(stamps) * 1e3
    return first * 1e3, float(np.median(ticks)), begin.elapsed_time(end) / (FRAMES - 1)


def newcomer(runner: GraphTalkerRunner, prompts: PromptBuilder, slot: int, *, word_times: bool = False) -> Newcomer:
    """A stream with a prompt of about 60 rows, and pages for its frames."""
    text = "one two three four five six seven eight nine ten " * 10
    options = {"speaker": "ryan", "language": "english", "seed": slot, "max_frames": FRAMES, "word_times": word_times}
    request = SynthesisRequest.of({"text": text, **options})
    stream = prompts.stream(request, NullSink(), str(slot))
    keep = min(60, len(stream.prompt))
    prompt = type(stream.prompt)(stream.prompt.text_ids[-keep:], stream.prompt.code_ids[-keep:], [], keep)
    stream.prompt = prompt
    count = -(-(keep + FRAMES) // runner.limits.page_size)
    return Newcomer(stream, slot, list(range(slot * count, (slot + 1) * count)))


def environment(checkpoint: Checkpoint) -> dict[str, Any]:
    config = checkpoint.config
    return {
        **origin("scripts.benchmarks.talker", torch.cuda.get_device_name(), commit()),
        "settings": {
            "checkpoint": f"{config.tts_model_size} {config.tts_model_type}",
            "environment": settings_of_environment(),
            "prompt_rows": 60,
            "frames": FRAMES,
            "sampling": "temperature 0.9, top_k 50, both stages",
            "torch": torch.__version__,
        },
    }


if __name__ == "__main__":
    typer.run(main)
