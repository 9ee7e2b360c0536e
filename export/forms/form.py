"""A form in which code2wav is exported."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from export.agreement import Agreement
from export.forms.graph import Runtime
from export.modules.codec import CodecStep
from export.verify import Candidate, Verification, Verifier
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
    """Takes a step in FP32."""
    load: Callable[[Path], Candidate]
    encoders: Runtime
    """Runtime of a Base checkpoint's encoders."""
    verification: Callable[[CodecStep, Candidate], Verifier] = Verification
    """Compares what `load` returns."""
    remedy: str = "Export another --form, or with the versions of scripts/constraints.txt."
    """Advice if verification fails."""
    timings: Callable[[Any], list[str]] | None = None
    """Lines of the summary, from what `load` returns."""
