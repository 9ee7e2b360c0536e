"""A direct line to code2wav: calls between the two processes, without Triton (code2wav_step/line.py is the other end).

Codes and samples are in memory that both map; a byte in a pipe announces each call and each answer.
"""

import json
import logging
import mmap
import os
import secrets
import select
import threading
from typing import Any

import numpy as np

from qwen3_tts_engine.audio import NUM_CODEBOOKS, SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.contract import (
    LINE_MEMORY,
    MAX_BATCH,
    MAX_CALL_FRAMES,
    MODEL_NAME,
    NOTE_MEMORY,
    PLACES_SIZE,
)
from qwen3_tts_engine.request import RequestError, Unavailable

log = logging.getLogger(__name__)

# Parts of the memory in bytes: rows and frames of the call, places, codes, text of an error, samples.
SIZES = {
    "shape": 8,
    "places": MAX_BATCH * PLACES_SIZE * 4,
    "codes": MAX_CALL_FRAMES * NUM_CODEBOOKS * 4,
    "error": 4096,
    "pcm": MAX_CALL_FRAMES * SAMPLES_PER_FRAME * 2,
}
OFFSETS = dict(zip(SIZES, np.cumsum([0, *SIZES.values()]).tolist(), strict=False))
CALL, ANNOUNCEMENT, OK = b"\1", b"\2", b"\0"


class Line:
    """The talker's end. code2wav takes the other one at a request with the parameter contract.LINE, the `address`."""

    def __init__(self) -> None:
        requests, self._requests = os.pipe()
        self._answers, self._answers_end = os.pipe()
        memory = os.memfd_create(LINE_MEMORY)
        os.truncate(memory, sum(SIZES.values()))
        self._memory = mmap.mmap(memory, sum(SIZES.values()))
        # The other process opens the files of this one.
        files = {"requests": requests, "answers": self._answers_end, "memory": memory}
        self.address = leave_note({"process": os.getpid(), "files": files, "offsets": OFFSETS, "sizes": SIZES})
        self._is_open = False
        self._lock = threading.Lock()

    def is_open(self) -> bool:
        """Whether code2wav has taken its end."""
        if not self._is_open and select.select([self._answers], [], [], 0)[0]:
            os.read(self._answers, 1)
            # The only writer is now code2wav, whose death ends the pipe.
            os.close(self._answers_end)
            self._is_open = True
            log.info("codec calls: by a direct line to %s", MODEL_NAME)
        return self._is_open

    def announce(self) -> None:
        """A call follows within milliseconds, for which code2wav prepares."""
        if not self._lock.locked():
            os.write(self._requests, ANNOUNCEMENT)

    def call(self, codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        """client.Call."""
        with self._lock:
            for name, values in (("shape", codes.shape[:2]), ("places", places), ("codes", codes)):
                part = np.asarray(values, np.int32)
                self._part(name, np.int32, part.size)[:] = part.ravel()
            os.write(self._requests, CALL)
            answer = os.read(self._answers, 1)
            if answer == OK:
                rows, frames = codes.shape[:2]
                samples = self._part("pcm", np.int16, rows * frames * SAMPLES_PER_FRAME)
                return samples.reshape(rows, -1).copy()
            if not answer:
                # As when Triton no longer finds the model: a server that stops unloads code2wav beside its callers.
                raise Unavailable(f"{MODEL_NAME}: its process ended")
            reason = bytes(self._part("error", np.uint8, SIZES["error"])).partition(b"\0")[0].decode()
            raise RequestError(f"{MODEL_NAME}: {reason}")

    def _part(self, name: str, dtype: type[np.generic], count: int) -> np.ndarray:
        if count * np.dtype(dtype).itemsize > SIZES[name]:
            raise ValueError(f"{name}: too large for the line")
        return np.frombuffer(self._memory, dtype, count, OFFSETS[name])


def leave_note(note: dict[str, Any]) -> str:
    """The address of a note, in JSON, for processes of this user while this one lives. Any caller of code2wav may send
    one, so it carries the note's secret."""
    # In-memory files are reached through the process that holds them open, so none is left over when it ends.
    file, secret = os.memfd_create(NOTE_MEMORY), secrets.token_hex(16)
    os.write(file, json.dumps(note | {"secret": secret}).encode())
    return json.dumps({"note": [os.getpid(), file], "secret": secret})
