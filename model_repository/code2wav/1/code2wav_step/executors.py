"""The step of a version folder, by the executor that its model names."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from code2wav_step.config import StepConfig
from code2wav_step.rows import Places, Rows

# Value of the parameter "executor" in Triton's configuration.
ONNX_RUNTIME = "onnxruntime"
RowsT = TypeVar("RowsT", bound=Rows[Any])


class StepRunner(Protocol[RowsT]):
    """Not thread-safe."""

    config: StepConfig

    def context(self) -> AbstractContextManager[object]:
        """In which a thread calls the others."""

    def new_rows(self) -> RowsT:
        """Rows for the states of this step."""

    def decode(self, codes: np.ndarray, rows: RowsT, places: Places) -> np.ndarray:
        """The samples (pcm.to_int16) of codes int32 [B, T, 16], whose states stay in `rows`; valid until the next
        call."""

    def prepare(self, codes: np.ndarray, rows: RowsT, places: Places) -> object:
        """The part of `decode` without effects."""


def load_runner(folder: Path, executor: str, args: dict[str, str]) -> StepRunner[Any]:
    """`args` are those of `initialize`. Raises ValueError naming the file."""
    # A GPU needs no ONNX Runtime, which needs no PyTorch: on a CPU that saves two seconds and 200 MB.
    if executor == ONNX_RUNTIME:
        from code2wav_step import onnx_runner

        return onnx_runner.OnnxStepRunner(folder / onnx_runner.MODEL_FILE)
    import torch

    from code2wav_step import instance, startup

    device = instance.assigned_device(args)
    # A stream of its own, so that synchronising waits for nothing else.
    with torch.cuda.stream(torch.cuda.Stream(device) if device.type == "cuda" else None):
        return startup.make_runner(startup.load_weights(folder / startup.MODEL_FILE, device), device)
