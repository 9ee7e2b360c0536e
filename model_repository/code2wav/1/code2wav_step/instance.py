"""What Triton assigns to a model instance beside the talker: its device, and its log."""

import logging
from typing import TYPE_CHECKING

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    import torch


def assigned_device(args: dict[str, str]) -> "torch.device":
    """The device in `initialize`'s arguments; limits PyTorch's threads if it is a CPU."""
    # ONNX Runtime does without it.
    import torch

    if args["model_instance_kind"] != "GPU":
        # The talker needs the other cores.
        torch.set_num_threads(2)
        return torch.device("cpu")
    device = torch.device("cuda", int(args["model_instance_device_id"]))
    torch.cuda.set_device(device)
    torch.set_num_threads(1)
    return device


class _TritonHandler(logging.Handler):
    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def emit(self, record: logging.LogRecord) -> None:
        write = pb_utils.Logger.log_info if record.levelno < logging.WARNING else pb_utils.Logger.log_warn
        write(f"{self._model}: {self.format(record)}")


def log_through_triton(log: logging.Logger, model: str) -> None:
    log.handlers, log.propagate = [_TritonHandler(model)], False
    log.setLevel(logging.INFO)
