"""Microseconds of the codec step per frame and stream, and its error, by batch and chunk length, on a CUDA device.

    python -m scripts.benchmarks.codec --checkpoint CHECKPOINT --output docs/benchmarks/codec-h200.json

Without a checkpoint, measures random weights of the released size.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor

from code2wav_step import startup
from code2wav_step.buckets import BatchShape, Buckets
from code2wav_step.config import Contract
from code2wav_step.device_rows import DeviceRows
from code2wav_step.kernel_ops import KernelOps
from code2wav_step.rows import Places
from code2wav_step.runner import GraphStepRunner
from code2wav_step.torch_ops import TorchOps
from code2wav_step.weights import StepWeights
from export.forms import python_form
from export.modules.codec import CodecStep
from export.verify import IRREGULAR_CHUNKS
from qwen3_tts_client.records.environment import commit
from qwen3_tts_engine.audio import SAMPLE_RATE, SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import codec_decoder_shapes
from qwen3_tts_engine.codec.contract import MAX_BATCH, MAX_FRAMES, max_history
from scripts.benchmarks.common import origin, show
from scripts.synthetic.configs import CODEC_DECODER
from scripts.synthetic.weights import initial

console = Console()
SHAPES = "1x1,1x4,8x1,8x4,32x4,64x1,64x2,64x4,64x8"
SECONDS = 60
LONG_ROWS = 2
EDGE_SAMPLES = 10 * SAMPLE_RATE
CALLS = 10


def main(
    checkpoint: Annotated[str | None, typer.Option(help="folder or hub id")] = None,
    shapes: Annotated[str, typer.Option(help="batch x frames")] = SHAPES,
    kernels: Annotated[bool, typer.Option(help="fused kernels rather than PyTorch's")] = True,
    repeats: Annotated[int, typer.Option(help="reports the median")] = 7,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda:0")
    reference = reference_step(checkpoint, device)
    sizes = [shape_of(text) for text in shapes.split(",")]
    every = Buckets(MAX_BATCH, MAX_FRAMES).shapes
    captured = {*sizes, *((rows, frames) for rows, frames in every if rows == LONG_ROWS)}
    runner = _runner(reference, device, kernels, sorted(captured))
    streams = Streams(reference)
    rows = [measure(runner, streams, batch, frames, repeats) for batch, frames in sizes]
    record = environment(checkpoint, kernels) | {"long": long_error(runner, reference), "rows": rows}
    show(rows, console)
    console.print(record["long"])
    if output:
        output.write_text(json.dumps(record, indent=1) + "\n")


class Streams:
    """Inputs of any batch and chunk length, with a warm state."""

    @torch.inference_mode()
    def __init__(self, reference: CodecStep) -> None:
        self.reference, self._window = reference, max_history(reference.config)
        self._state = torch.zeros(1, reference.state_size, device="cuda")
        for start in range(0, 4 * MAX_FRAMES, MAX_FRAMES):
            codes = random_codes(reference.config, 1, MAX_FRAMES)
            _, self._state = reference(codes, self._state, self._history(1, min(start, self._window)))

    def inputs(self, batch: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
        codes = random_codes(self.reference.config, batch, frames)
        return codes, self._state.half().repeat(batch, 1), self._history(batch, self._window)

    def _history(self, batch: int, frames: int) -> Tensor:
        return torch.full((batch, 1), frames, dtype=torch.int32, device="cuda")


def random_codes(config: CodecDecoderConfig, batch: int, frames: int) -> Tensor:
    shape = (batch, frames, config.num_quantizers)
    return torch.randint(0, config.codebook_size, shape, dtype=torch.int32, device="cuda")


def measure(runner: GraphStepRunner, streams: Streams, batch: int, frames: int, repeats: int) -> dict[str, Any]:
    """Median time of a call, including copies of states to and from the graph's buffers, and its error.

    "in place" is a call as the server makes it: the states stay where they are, and the samples go to the host.
    """
    codes, state, history = streams.inputs(batch, frames)
    inputs = (codes.cpu(), state, history.cpu())  # as in a request
    waveform, _ = runner(*inputs)
    with torch.inference_mode():
        expected, _ = streams.reference(codes[:8], state[:8].float(), history[:8])
    error = snr_db(expected, waveform[:8])
    ms = _milliseconds(lambda: runner(*inputs), repeats)
    rows, places = filled(state, history[:, 0].cpu().numpy(), runner.config.contract)
    host_codes = codes.cpu().numpy()
    in_place = _milliseconds(lambda: runner.advance(host_codes, rows, places), repeats)
    return {
        "batch": batch,
        "frames": frames,
        "us_per_frame": round(1e3 * ms / (batch * frames), 2),
        "ms": round(ms, 3),
        "in_place_ms": round(in_place, 3),
        "snr_db": round(error, 1),
    }


def filled(state: Tensor, history: np.ndarray, contract: Contract) -> tuple[DeviceRows, Places]:
    """Rows with the states [B, S], and places that read them and write as many others."""
    batch, size = state.shape
    rows = DeviceRows(size, state.dtype, state.device, contract)
    before = np.arange(1, batch + 1)

    def places(read: np.ndarray, written: np.ndarray) -> Places:
        return rows.open(np.stack([read, written, history, np.ones(batch)], axis=1).astype(np.int32))

    rows.scatter(places(np.zeros(batch), before), state)
    return rows, places(before, batch + before)


def _milliseconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / CALLS)
    return float(statistics.median(times))


@torch.inference_mode()
def long_error(runner: GraphStepRunner, reference: CodecStep) -> dict[str, Any]:
    """SNR of a minute decoded in irregular chunks against the reference's regular ones, also of both ends."""
    window = max_history(reference.config)
    codes = random_codes(reference.config, LONG_ROWS, SECONDS * SAMPLE_RATE // SAMPLES_PER_FRAME)
    cold = torch.zeros(LONG_ROWS, reference.state_size, device=codes.device)
    expected = _decode(reference, codes, cold, window, cycle([MAX_FRAMES]))

    def served(codes: Tensor, state: Tensor, history: Tensor) -> tuple[Tensor, Tensor]:
        return runner(codes.cpu(), state, history.cpu())  # as in a request

    actual = _decode(served, codes, cold.half(), window, cycle(IRREGULAR_CHUNKS))
    parts = {"all": slice(None), "first_10_s": slice(EDGE_SAMPLES), "last_10_s": slice(-EDGE_SAMPLES, None)}
    errors = {f"snr_db_{name}": round(snr_db(expected[:, part], actual[:, part]), 2) for name, part in parts.items()}
    return {"seconds": SECONDS, "chunks": list(IRREGULAR_CHUNKS)} | errors


def _decode(step: Any, codes: Tensor, state: Tensor, window: int, lengths: Iterator[int]) -> Tensor:
    waveforms, start = [], 0
    while start < codes.shape[1]:
        chunk = codes[:, start : start + next(lengths)]
        history = torch.full((len(codes), 1), min(start, window), dtype=torch.int32, device=codes.device)
        waveform, state = step(chunk, state, history)
        waveforms.append(waveform)
        start += chunk.shape[1]
    return torch.cat(waveforms, dim=1)


def snr_db(expected: Tensor, actual: Tensor) -> float:
    signal, noise = expected.double().square().sum(), (expected.double() - actual.double()).square().sum()
    return float(10 * torch.log10(signal / noise))


def shape_of(text: str) -> BatchShape:
    rows, frames = map(int, text.split("x"))
    return rows, frames


def reference_step(checkpoint: str | None, device: torch.device) -> CodecStep:
    if checkpoint:
        return CodecStep.from_checkpoint(Checkpoint.open(checkpoint)).to(device)
    config = CodecDecoderConfig.model_validate(CODEC_DECODER)
    tensors = {name: initial(name, shape, 0, device) for name, shape in codec_decoder_shapes(config).items()}
    return CodecStep(config, tensors, torch.float32).eval().to(device)


def load_weights(reference: CodecStep, device: torch.device) -> StepWeights:
    """Exports the weights and loads them as code2wav does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / startup.MODEL_FILE
        python_form.build(reference, path)
        return startup.load_weights(path, device)


def _runner(reference: CodecStep, device: torch.device, kernels: bool, shapes: list[BatchShape]) -> GraphStepRunner:
    started = time.perf_counter()
    weights = load_weights(reference, device)
    kind = KernelOps if kernels else TorchOps
    runner = startup.capture(weights, kind(weights.config, device), device, shapes)
    console.print(f"loaded and captured in {time.perf_counter() - started:.1f} s")
    return runner


def environment(checkpoint: str | None, kernels: bool) -> dict[str, Any]:
    return {
        **origin("scripts.benchmarks.codec", torch.cuda.get_device_name(), commit()),
        "engine": f"PyTorch {torch.__version__}, CUDA graphs, {'fused kernels' if kernels else 'PyTorch operations'}",
        "weights": checkpoint or "random, of the released size",
    }


if __name__ == "__main__":
    typer.run(main)
