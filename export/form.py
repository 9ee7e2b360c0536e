"""What a form of code2wav is: ONNX, folded weights for the Python backend, TensorRT later."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from export.codec import CodecStep
from export.verify import Agreement, Step
from qwen3_tts_engine.manifest import FormName


@dataclass(frozen=True)
class Form:
    """One way to build, load and judge the codec step."""

    name: FormName
    filename: str
    state_dtype: Literal["FP32", "FP16"]
    opset: int | None
    limit: Agreement
    build: Callable[[CodecStep, Path], None]
    load: Callable[[Path], Step]
