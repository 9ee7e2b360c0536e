"""Computes what other GPUs would serve, from a record of scripts.benchmarks.gpu_parts and their data sheets.

    python -m scripts.benchmarks.gpu_classes --record docs/benchmarks/general-path-h200.json

Nothing of this is measured on those GPUs. A GPU is taken for a part of the measured one: the ratio of their bfloat16
arithmetic, or of their multiprocessors' clocks where that is less. Times have a constant and an inverse of the part,
fitted to the record. What a GPU reads takes longer by what its bandwidth lacks, as if nothing overlapped.
"""

import json
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.checkpoint.configs import ModelConfig, SpeechTokenizerConfig
from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.codec.contract import state_size
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.talker.memory_plan import (
    CONTEXT_BYTES,
    ELEMENT,
    GIB,
    GpuMemory,
    MemoryNeeds,
    codec_model,
    page_bytes,
)
from scripts.benchmarks.common import show
from scripts.benchmarks.memory import USABLE
from scripts.synthetic.configs import Size, model_config, speech_tokenizer_config
from scripts.synthetic.tokenizer import text_tokenizer

SIZE: Size = "1.7b"
# Prompt and frames of a stream, on average.
POSITIONS = 150
# The CUDA context of tritonserver, measured on one H200.
TRITON_BYTES = GIB // 2
FIRST_AUDIO, RATE = "ttfa_p50_ms", "audio_s_per_s"
console = Console()


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet; `tflops` are dense, bfloat16, with sums in FP32."""

    name: str
    gib: int
    multiprocessors: int
    ghz: float
    tflops: float
    gb_per_s: float
    path: str = "general"

    def part_of(self, whole: "Gpu") -> float:
        clocks = self.multiprocessors * self.ghz / (whole.multiprocessors * whole.ghz)
        return min(1.0, clocks, self.tflops / whole.tflops)

    def lacks(self, whole: "Gpu") -> float:
        """Seconds that a byte takes longer."""
        return max(0.0, 1 / self.gb_per_s - 1 / whole.gb_per_s) / 1e9


H200 = Gpu("H200", 141, 132, 1.98, 989, 4800, "auto")
GPUS = (
    Gpu("RTX 4060", 8, 24, 2.46, 30, 272),
    Gpu("A10", 24, 72, 1.70, 125, 600),
    Gpu("L4", 24, 58, 2.04, 121, 300),
    Gpu("RTX 4090", 24, 128, 2.52, 165, 1008),
    Gpu("RTX 5090", 32, 170, 2.41, 210, 1792),
    Gpu("L40S", 48, 142, 2.52, 362, 864),
    Gpu("A100", 80, 108, 1.41, 312, 2039),
    Gpu("H100", 80, 132, 1.98, 989, 3350, "auto"),
    Gpu("B200", 180, 148, 1.97, 2250, 8000),
)


@cache
def model() -> ModelConfig:
    return ModelConfig.model_validate(model_config(SIZE, "custom_voice", text_tokenizer(SIZE).ids_for_config()))


@cache
def weight_bytes() -> int:
    """Bytes that a tick reads: the talker's weights, and the predictor's for each code but the first, where each has a
    head of its own. The codec's are 4 % of these."""
    config = model().talker_config

    def size(*prefixes: str) -> int:
        return sum(prod(shape) for name, shape in talker_shapes(model()).items() if name.startswith(prefixes))

    talker = size("talker.model.layers.", "talker.codec_head.") + size("talker.code_predictor.lm_head.")
    predictor = size("talker.code_predictor.model.layers.", "talker.code_predictor.small_to_mtp_projection.")
    return ELEMENT * (talker + (config.num_code_groups - 1) * predictor)


def main(
    record: Annotated[Path, typer.Option(help="of scripts.benchmarks.gpu_parts, with both paths")],
) -> None:
    measured = json.loads(record.read_text())["rows"]
    show([row(gpu, measured) for gpu in GPUS], console)


def row(gpu: Gpu, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """What `gpu` would do by these rows of gpu_parts. Raises ValueError if they have none of its path."""
    rows = [one for one in measured if one["path"] == gpu.path]
    if not rows:
        raise ValueError(f"the record has no rows of the path {gpu.path}")
    part, streams = gpu.part_of(H200), streams_in(gpu)
    first_s = seconds_at(part, rows, 1, FIRST_AUDIO) + weight_bytes() * gpu.lacks(H200)
    loads = sorted({int(one["load"].removeprefix("c=")) for one in rows})
    rates = [1 / (seconds_at(part, rows, load, RATE) + missing_s(gpu, load)) for load in loads]
    return {
        "GPU": gpu.name,
        "GiB": gpu.gib,
        "part": f"{part:.0%}",
        "GB/s": gpu.gb_per_s,
        "streams": streams,
        "first audio, ms": round(1e3 * first_s),
        "listeners": two_digits(float(np.interp(streams, loads, rates))),
    }


def seconds_at(part: float, rows: list[dict[str, Any]], load: int, column: str) -> float:
    """Time to the first audio, or of a second of audio: what does not depend on the part of the GPU, and what does."""
    found = [(one["share"] / 100, float(one[column])) for one in rows if one["load"] == f"c={load}"]
    parts, values = np.array(found).T
    times = 1 / values if column == RATE else values / 1e3
    slope, constant = np.polyfit(1 / parts, times, 1)
    return float(constant + slope / part)


def two_digits(value: float) -> int:
    return int(float(f"{value:.2g}"))


def missing_s(gpu: Gpu, load: int) -> float:
    """Seconds for a second of audio at `load` streams, for want of bandwidth."""
    stream = page_bytes(model().talker_config, POSITIONS)
    return (weight_bytes() / load + stream) / FRAME_SECONDS * gpu.lacks(H200)


def streams_in(gpu: Gpu) -> int:
    """Streams that max_streams=auto chooses, beside tritonserver's context and the talker's own."""
    decoder = SpeechTokenizerConfig.model_validate(speech_tokenizer_config(SIZE)).decoder_config
    total, state = gpu.gib * GIB, state_size(decoder)
    codec = codec_model("code2wav", CodecManifest.model_construct(form="python", state_size=state), decoder, total)
    memory = GpuMemory(int(USABLE * total) - CONTEXT_BYTES - TRITON_BYTES, total, awaited=codec.size)
    return MemoryNeeds(model(), EngineConfig(checkpoint=SIZE), ELEMENT * state).choose(memory).streams


if __name__ == "__main__":
    typer.run(main)
