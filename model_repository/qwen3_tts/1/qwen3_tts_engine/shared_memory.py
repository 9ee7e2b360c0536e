"""Memory that another process maps too (code2wav_step/shared_states.py): its owner says how in a line of text."""

import json
import os

import torch
from torch import Tensor

# Of the file in memory; who opens one by its path sees that it is meant to be shared.
MEMORY_NAME = "qwen3_tts_states"


def shared_zeros(owner: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, str]:
    """A tensor, and the JSON object by which another process on this machine finds it while this one lives.

    `owner` has one at a time; who maps the next one lets go of the last.
    """
    address: dict[str, object] = {"owner": owner, "shape": shape, "dtype": str(dtype).removeprefix("torch.")}
    if device.type == "cuda":
        tensor = torch.zeros(shape, dtype=dtype, device=device)
        handle = tensor.untyped_storage()._share_cuda_()
        address["cuda"] = [part.hex() if isinstance(part, bytes) else part for part in handle]
    else:
        # Reached through the process that holds it open, so that nothing is left behind when that ends.
        file = os.memfd_create(MEMORY_NAME)
        address["file"] = [os.getpid(), file]
        rows, size = shape
        tensor = torch.from_file(f"/proc/self/fd/{file}", shared=True, size=rows * size, dtype=dtype).view(shape)
    return tensor, json.dumps(address)
