"""Codec states in the talker's memory, mapped from its process (qwen3_tts_engine/codec/shared_memory.py)."""

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from code2wav_step.config import Contract
from code2wav_step.requests import STATE_DTYPE, InvalidInputError


class SharedStates:
    """The mapped states of every calling talker."""

    def __init__(
        self, device: torch.device, state_size: int, contract: Contract, open_line: Callable[[Any, Tensor], object]
    ) -> None:
        """`open_line` takes the place of a talker's direct line, and its states."""
        self._open_line = open_line
        self._device = device
        self._contract = contract
        self._state_size = state_size
        # Owner to its address and the states mapped there.
        self._mapped: dict[str, tuple[str, Tensor]] = {}

    @property
    def addresses(self) -> set[str]:
        return {address for address, _ in self._mapped.values()}

    def find(self, address: str) -> Tensor:
        """fp16 [rows, S]; replaces the previous mapping of the same owner. Raises InvalidInputError."""
        for known, states in self._mapped.values():
            if known == address:
                return states
        note = _read_note(address, self._contract)
        try:
            return self._map(address, note)
        except InvalidInputError:
            raise
        except Exception as error:
            raise InvalidInputError(f"{self._contract.states}: cannot be mapped: {error}") from error

    def _map(self, address: str, found: dict[str, Any]) -> Tensor:
        rows, size = map(int, found["shape"])
        if (size, found["dtype"]) != (self._state_size, "float16"):
            raise InvalidInputError(
                f"{self._contract.states}: {found['dtype']} [{size}] given, float16 [{self._state_size}] expected"
            )
        device = torch.device("cuda", found["cuda"][0]) if "cuda" in found else torch.device("cpu")
        if device != self._device:
            raise InvalidInputError(
                f"{self._contract.states}: on {device}, this model runs on {self._device}: "
                "run one server for each GPU, or set shared_codec_states to off"
            )
        states = (
            _from_gpu(found["cuda"], rows, size)
            if "cuda" in found
            else _from_file(memory_path(found["file"], self._contract.states_memory), rows, size)
        )
        self._mapped[found["owner"]] = address, states
        if "line" in found:
            self._open_line(found["line"], states)
        return states


def _read_note(address: str, contract: Contract) -> dict[str, Any]:
    """Reads the talker's note; raises InvalidInputError unless `address` has its secret."""
    try:
        given = json.loads(address)
        note = json.loads(memory_path(given["note"], contract.note_memory).read_bytes())
        if secrets.compare_digest(note["secret"], given["secret"]):
            return dict(note)
    except Exception:
        pass  # the reason would reveal which processes and files exist
    raise InvalidInputError(f"{contract.states}: not an address issued by a talker")


def memory_path(place: list[Any], name: str) -> Path:
    """The path of a process's memfd; rejects any other file."""
    process, file = map(int, place)
    path = Path(f"/proc/{process}/fd/{file}")
    if not os.readlink(path).startswith(f"/memfd:{name} "):
        raise ValueError(f"{path} is not {name}")
    return path


def _from_gpu(handle: list[Any], rows: int, size: int) -> Tensor:
    parts = [bytes.fromhex(part) if isinstance(part, str) else part for part in handle]
    torch.cuda.init()  # PyTorch crashes if memory is mapped before this
    storage = torch.UntypedStorage._new_shared_cuda(*parts)
    flat = torch.empty(0, dtype=STATE_DTYPE, device=storage.device).set_(storage)
    return flat[: rows * size].view(rows, size)


def _from_file(path: Path, rows: int, size: int) -> Tensor:
    return torch.from_file(str(path), shared=True, size=rows * size, dtype=STATE_DTYPE).view(rows, size)
