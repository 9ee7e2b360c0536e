"""Shared memory for the codec states, which code2wav_step/shared_states.py maps by an address in text."""

import json
import os
import secrets
from typing import Any

import torch
from torch import Tensor

from qwen3_tts_engine.codec.contract import NOTE_MEMORY, STATES_MEMORY
from qwen3_tts_engine.codec.line import Line


def shared_zeros(
    owner: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device, line: Line | None = None
) -> tuple[Tensor, str]:
    """A tensor, and a JSON address for other processes of this user, valid while this process lives.

    A process that maps the tensor takes the other end of `line`.

    Any caller of code2wav can send an address, so it names a note that locates the tensor and carries the note's
    secret. Each `owner` has one tensor; mapping a new one releases the previous one.
    """
    note: dict[str, Any] = {"owner": owner, "shape": shape, "dtype": str(dtype).removeprefix("torch.")}
    if line is not None:
        note["line"] = line.place
    if device.type == "cuda":
        tensor = torch.zeros(shape, dtype=dtype, device=device)
        handle = tensor.untyped_storage()._share_cuda_()
        note["cuda"] = [part.hex() if isinstance(part, bytes) else part for part in handle]
    else:
        file = os.memfd_create(STATES_MEMORY)
        note["file"] = [os.getpid(), file]
        rows, size = shape
        tensor = torch.from_file(f"/proc/self/fd/{file}", shared=True, size=rows * size, dtype=dtype).view(shape)
    return tensor, leave_note(note)


def leave_note(note: dict[str, Any]) -> str:
    """Publish a note; returns its address."""
    # In-memory files are reached through the process that holds them open, so none is left over when it ends.
    file, secret = os.memfd_create(NOTE_MEMORY), secrets.token_hex(16)
    os.write(file, json.dumps(note | {"secret": secret}).encode())
    return json.dumps({"note": [os.getpid(), file], "secret": secret})
