"""Shared by the benchmarks: tables of rows, origin and settings of a record, a sink, work in processes."""

import multiprocessing
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from qwen3_tts_client.protocol import SpeechRequest, encode
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_client.sync_stream import speak
from qwen3_tts_engine.config import ENVIRONMENT_PREFIX, SECRET_SETTINGS
from qwen3_tts_engine.core.streams import Summary
from qwen3_tts_engine.request import RequestError
from scripts.server.protection import ADMIN_KEY_VARIABLE

Item = TypeVar("Item")

TEXT = "Thanks for calling. Your order left the warehouse today, it should be with you by Friday."


class NullSink:
    """A sink that discards audio."""

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None: ...

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None: ...


def first_audio_ms(stub: Any, request: SpeechRequest) -> float:
    """Milliseconds to the first chunk; reads the stream to its end. Raises SpeechError."""
    message = encode(request)
    started = time.perf_counter_ns()
    first, *_ = [arrived for arrived, _ in speak(stub, [message], Timeouts(60, 60))]
    return (first - started) / 1e6


def run_in_processes(run: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Uses as many processes as the machine has cores, each with a CUDA context of its own."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(run, items))


def show(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def origin_of(module: str, machine: Mapping[str, Any]) -> dict[str, str | None]:
    """`origin` on a qwen3_tts_client.records.environment."""
    return origin(module, gpu_of(machine), machine["commit"])


def origin(module: str, gpu: str | None, commit: str | None) -> dict[str, str | None]:
    """What each record begins with: GPU, commit and command of this run of `module`."""
    return {"gpu": gpu, "commit": commit, "command": command_of(module)}


def command_of(module: str) -> str:
    """This process's command, which runs `module`."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def gpu_of(machine: Mapping[str, Any]) -> str:
    """The GPUs, or else the CPU, of a qwen3_tts_client.records.environment."""
    return ", ".join(gpu["name"] for gpu in machine["gpus"]) or f"none ({machine['cpu']}, {machine['cpus']} cores)"


def settings_of_environment() -> dict[str, str]:
    """All settings but the secret ones, of any model."""
    secrets = (ADMIN_KEY_VARIABLE, *(f"_{name.upper()}" for name in SECRET_SETTINGS))
    return {
        name: value
        for name, value in os.environ.items()
        if value and name.startswith(ENVIRONMENT_PREFIX) and not name.endswith(secrets)
    }
