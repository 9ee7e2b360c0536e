"""A service with faults on demand: scripts.soak puts it into the model, with an engine_process.py that runs it.

A file in the folder SOAK_FAULTS requests the fault of its name; the process that injects it removes the file.
"""

import os
from pathlib import Path
from typing import Any

import torch

from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.service import Service

FAULTS = Path(os.environ["SOAK_FAULTS"])
CODEC_ERROR, OUT_OF_MEMORY = "codec_error", "out_of_memory"


def is_due(fault: str) -> bool:
    try:
        (FAULTS / fault).unlink()
    except FileNotFoundError:
        return False
    return True


class FaultyService(Service):
    def make_codec(self, *arguments: Any) -> Any:
        codec: Any = super().make_codec(*arguments)
        decode = codec.decode

        def failing(chunks: Any) -> Any:
            if is_due(CODEC_ERROR):
                raise RequestError("injected into a codec call")
            return decode(chunks)

        codec.decode = failing
        return codec

    def make_runner(self, *arguments: Any) -> Any:
        runner: Any = super().make_runner(*arguments)
        # A step of every prefill, with and without graphs.
        load_history = runner._state.load_history

        def failing(newcomers: Any) -> None:
            if is_due(OUT_OF_MEMORY):
                raise torch.OutOfMemoryError("injected into a prefill")
            load_history(newcomers)

        runner._state.load_history = failing
        return runner
