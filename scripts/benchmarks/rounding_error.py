"""What rounding does to the talker: bfloat16 arithmetic, and FP8 weights, each against the same weights in float32.

The first frame behind prompts of the client's sentences is compared: the logits of codebook 0, and the codes that are
most likely.
"""

from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor

from qwen3_tts_client.bench.prompt import DEFAULT_FILE, read_prompts
from qwen3_tts_engine.checkpoint.checkpoint import WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core import Newcomer
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.code_predictor import CodePredictor
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.weights import Matrix
from scripts.benchmarks.common import show
from scripts.benchmarks.talker import Deaf

PAGES, PAGE_SIZE = 16, 32
VARIANTS = {
    "float32": (torch.float32, Matrix),
    "bfloat16": (torch.bfloat16, Matrix),
    "fp8 weights": (torch.float32, Matrix.rounded),
}


class RecordingOps(TorchOps):
    """Keeps the logits of every head."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def norm_logits(self, x: Tensor, norm: Tensor, weight: Matrix, eps: float) -> Tensor:
        self.logits.append(super().norm_logits(x, norm, weight, eps))
        return self.logits[-1]


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id of a CustomVoice checkpoint")],
    prompts: Annotated[int, typer.Option(help="sentences")] = 64,
    device: Annotated[str, typer.Option(help="cpu or cuda:N")] = "cuda:0",
) -> None:
    opened = Checkpoint.open(checkpoint)
    newcomers = greedy(opened, prompts)
    made = {name: first_frame(opened, newcomers, torch.device(device), *how) for name, how in VARIANTS.items()}
    expected = made.pop("float32")
    show([compare(name, *found, *expected) for name, found in made.items()], Console())


def greedy(checkpoint: Checkpoint, count: int) -> list[Newcomer]:
    builder = PromptBuilder(checkpoint, EngineConfig(checkpoint=str(checkpoint.folder)))
    speaker = next(iter(checkpoint.config.talker_config.spk_id))
    newcomers = []
    for slot, prompt in enumerate(read_prompts(DEFAULT_FILE)[:count]):
        request = SynthesisRequest(text=prompt.fields["text"], speaker=speaker, temperature=0.0, max_frames=2)
        pages = list(range(slot * PAGES, (slot + 1) * PAGES))
        newcomers.append(Newcomer(builder.stream(request, Deaf(), prompt.id), slot, pages))
    return newcomers


def first_frame(
    checkpoint: Checkpoint, newcomers: list[Newcomer], device: torch.device, dtype: torch.dtype, matrix: Any
) -> tuple[Tensor, np.ndarray]:
    """Logits of codebook 0 float32 [prompts, vocabulary], codes int64 [prompts, codebooks]."""
    tensors = load_tensors(checkpoint.path(WEIGHTS), talker_shapes(checkpoint.config))
    tensors = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
    ops = RecordingOps()
    talker = Talker(checkpoint.config.talker_config, tensors, ops, matrix)
    predictor = CodePredictor(talker, tensors, ops, matrix)
    count = len(newcomers)
    limits = RunnerLimits(count, count * PAGES, PAGE_SIZE, PAGES * PAGE_SIZE, max_trailing=PAGES * PAGE_SIZE)
    runner = TalkerRunner(talker, predictor, limits, checkpoint.config.tts_pad_token_id, ops)
    assert runner.prefill(newcomers) == []
    codes = runner.launch(np.arange(count)).codes
    return ops.logits[0].cpu(), codes


def compare(
    name: str, logits: Tensor, codes: np.ndarray, expected_logits: Tensor, expected_codes: np.ndarray
) -> dict[str, Any]:
    """The logits' distance relative to their spread, and the share of codes that are the same."""
    spread = expected_logits - expected_logits.mean(-1, keepdim=True)
    return {
        "": name,
        "logit_distance": f"{float((logits - expected_logits).norm() / spread.norm()):.4f}",
        "same_code_0": f"{(codes == expected_codes)[:, 0].mean():.3f}",
        "same_codes": f"{(codes == expected_codes).mean():.3f}",
    }


if __name__ == "__main__":
    typer.run(main)
