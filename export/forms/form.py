"""A form in which code2wav is exported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from export.agreement import Agreement
from export.forms.graph import Runtime
from export.modules.codec import CodecStep
from export.verify import SHORT_UTTERANCE, StepFunction
from qwen3_tts_engine.checkpoint.manifest import EngineFacts, FormName


@dataclass(frozen=True)
class Form:
    """One way to build, load and verify the codec step."""

    name: FormName
    filename: str
    state_dtype: Literal["FP32", "FP16"]
    opset: int | None
    limit: Agreement
    build: Callable[[CodecStep, Path], EngineFacts | None]
    load: Callable[[Path], StepFunction]
    encoders: Runtime
    """Of a Base checkpoint."""
    weights_dtype: torch.dtype = torch.float32
    """Dtype of the step passed to `build`."""
    batches: Sequence[int] | None = None
    """Batch sizes to verify; None for all, or some if all take too long."""
    utterance: int = SHORT_UTTERANCE
    """Length of the utterance to verify, in frames."""
    remedy: str = "Export another --form, or with the versions of scripts/constraints.txt."
    """Advice if verification fails."""
    plugin: bool = False
    """Whether a plan uses the project's plugin."""
    timings: Callable[[Any, int], list[str]] | None = None
    """Lines of the summary, from the loaded step and the state's size."""
