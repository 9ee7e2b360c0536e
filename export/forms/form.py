"""What a form of code2wav is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from export.agreement import Agreement
from export.forms.graph import ONNX_RUNTIME, Runtime
from export.modules.codec import CodecStep
from export.verify import SHORT_UTTERANCE, Step
from qwen3_tts_engine.checkpoint.manifest import EngineFacts, FormName


@dataclass(frozen=True)
class Form:
    """One way to build, load and judge the codec step."""

    name: FormName
    filename: str
    state_dtype: Literal["FP32", "FP16"]
    opset: int | None
    limit: Agreement
    build: Callable[[CodecStep, Path], EngineFacts | None]
    load: Callable[[Path], Step]
    weights_dtype: torch.dtype = torch.float32
    """Of the step that `build` takes."""
    encoders: Runtime = ONNX_RUNTIME
    """What runs the encoders of a Base checkpoint beside it."""
    batches: Sequence[int] | None = None
    """To verify; None verifies all, or some where all take too long."""
    utterance: int = SHORT_UTTERANCE
    """Frames of the whole utterance to verify."""
    remedy: str = "Export another --form, or with the versions of scripts/constraints.txt."
    """What to do about a file that does not agree."""
    plugin: bool = False
    """Whether a plan's layer is the project's plugin."""
    timings: Callable[[Any, int], list[str]] | None = None
    """Lines of the summary, from what `load` returned and the state's size."""
