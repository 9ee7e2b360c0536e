"""A talker's direct line: its calls without Triton (qwen3_tts_engine/codec/line.py is the other end)."""

import json
import logging
import mmap
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from code2wav_step.config import Contract
from code2wav_step.requests import PLACE_SIZE, InvalidInputError

log = logging.getLogger(__name__)

ANNOUNCEMENT = b"\2"
OPEN, OK, FAILED = b"\1", b"\0", b"\2"
# Codes int32 [rows, frames * codebooks], places int32 [rows, PLACE_SIZE], and the samples to fill, int16 [rows,
# samples].
Run = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
# The part of a run without effects, for the same codes and places.
Prepare = Callable[[np.ndarray, np.ndarray], None]


class Line:
    """code2wav's end: answers calls on a thread until the talker's process ends."""

    def __init__(
        self,
        address: str,
        contract: Contract,
        sizes: tuple[int, int],
        run: Run,
        prepare: Prepare,
        context: AbstractContextManager[object],
    ) -> None:
        """`address` is the talker's, `sizes` are codebooks and samples of a frame. The thread runs in `context`.

        Raises InvalidInputError."""
        note = _read_note(address, contract)
        process, files = int(note["process"]), note["files"]
        self._codebooks, self._samples = sizes
        self._offsets, self._sizes = note["offsets"], note["sizes"]
        self._requests = _open_pipe(process, files["requests"], os.O_RDONLY)
        self._answers = _open_pipe(process, files["answers"], os.O_WRONLY)
        with _memory_path([process, files["memory"]], contract.line_memory).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._run, self._prepare, self._context = run, prepare, context
        threading.Thread(target=self._serve, name="line", daemon=True).start()

    def _serve(self) -> None:
        try:
            os.write(self._answers, OPEN)
            with self._context:
                while kind := os.read(self._requests, 1):
                    if kind == ANNOUNCEMENT:
                        self._on_announcement()
                    else:
                        os.write(self._answers, self._answer())
        except BrokenPipeError:
            pass  # the talker ended before it read the answer
        finally:
            os.close(self._requests)
            os.close(self._answers)

    def _on_announcement(self) -> None:
        """The last call without effect: after a pause of milliseconds its code is in no cache."""
        with suppress(Exception):
            self._prepare(*self._call()[:2])

    def _call(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arguments of Run."""
        rows, frames = map(int, self._part("shape", np.int32, 2))
        codes = self._part("codes", np.int32, rows * frames * self._codebooks).reshape(rows, frames, -1)
        places = self._part("places", np.int32, rows * PLACE_SIZE).reshape(rows, PLACE_SIZE)
        return codes, places, self._part("pcm", np.int16, rows * frames * self._samples).reshape(rows, -1)

    def _answer(self) -> bytes:
        try:
            self._run(*self._call())
        except Exception as error:
            log.warning("a call of the direct line failed: %s", error)
            reason = str(error).encode()[: self._sizes["error"] - 1] + b"\0"
            self._part("error", np.uint8, len(reason))[:] = np.frombuffer(reason, np.uint8)
            return FAILED
        return OK

    def _part(self, name: str, dtype: type[np.generic], count: int) -> np.ndarray:
        if count * np.dtype(dtype).itemsize > self._sizes[name]:
            raise ValueError(f"{name}: too large for the line")
        return np.frombuffer(self._memory, dtype, count, self._offsets[name])


def _open_pipe(process: int, file: int, flags: int) -> int:
    path = f"/proc/{process}/fd/{int(file)}"
    if not os.readlink(path).startswith("pipe:["):
        raise ValueError(f"{path} is no pipe")
    return os.open(path, flags)


def _read_note(address: str, contract: Contract) -> dict[str, Any]:
    """Reads the talker's note; raises InvalidInputError unless `address` has its secret."""
    try:
        given = json.loads(address)
        note = json.loads(_memory_path(given["note"], contract.note_memory).read_bytes())
        if secrets.compare_digest(note["secret"], given["secret"]):
            return dict(note)
    except Exception:
        pass  # the reason would reveal which processes and files exist
    raise InvalidInputError(f"{contract.line}: not an address issued by a talker")


def _memory_path(descriptor: list[Any], name: str) -> Path:
    """The path of a process's memfd; rejects any other file."""
    process, file = map(int, descriptor)
    path = Path(f"/proc/{process}/fd/{file}")
    if not os.readlink(path).startswith(f"/memfd:{name} "):
        raise ValueError(f"{path} is not {name}")
    return path
