"""Measures a GPU's free memory, and finds which of this server's other models have taken theirs."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from qwen3_tts_engine.talker.memory_plan import CONTEXT_BYTES, GpuMemory, OtherModel

log = logging.getLogger(__name__)

STUB, GUARD = "/triton_python_backend_stub", "/guard.py"
POLL_SECONDS = 0.5
# Includes the compilation of kernels. A model without a guard (lifecycle/guard.py) counts as loading for so long.
LOADING_SECONDS = 180.0


class Processes(NamedTuple):
    """Models of this server by their processes."""

    loading: set[str]
    loaded: set[str]


def measure(device: torch.device, others: Sequence[OtherModel], suffices: Callable[[GpuMemory], bool]) -> GpuMemory:
    """The memory of `device`, at once if it suffices, otherwise when no other model is loading any more.

    A model that is loading may have taken any part of what it needs, so all of that counts as awaited.
    """
    deadline, is_waiting = time.monotonic() + LOADING_SECONDS, False
    while True:
        # Before the measurement, which then has what a loaded model took.
        found = find_processes([other.name for other in others if other.has_process], _servers(), _commands())
        memory = account(*torch.cuda.mem_get_info(device), others, found.loaded)
        if suffices(memory) or not found.loading or time.monotonic() > deadline:
            return memory
        if not is_waiting:
            log.info("GPU memory is short: waiting until %s is loaded", ", ".join(sorted(found.loading)))
            is_waiting = True
        time.sleep(POLL_SECONDS)


def account(free: int, total: int, others: Sequence[OtherModel], loaded: set[str]) -> GpuMemory:
    """Tritonserver does not say what it has loaded into its own process: that counts as taken if so much is in use."""
    used = total - free - CONTEXT_BYTES
    taken = sum(other.size for other in others if (other.name in loaded if other.has_process else used >= other.size))
    return GpuMemory(free, total, taken, awaited=sum(other.size for other in others) - taken)


def find_processes(models: Iterable[str], servers: set[str], commands: Iterable[list[str]]) -> Processes:
    """`servers` are process ids, one of them tritonserver's; `commands` are those of all processes.

    A stub starts its guard when its model is loaded.
    """
    running, guarded = set[str](), set[str]()
    for command in commands:
        match command:
            case [stub, path, _, _, _, server, *_] if stub.endswith(STUB) and server in servers:
                running.add(Path(path).parents[1].name)
            case [_, _, _, guard, model, server, *_] if guard.endswith(GUARD) and server in servers:
                guarded.add(model)
    return Processes(running & set(models) - guarded, guarded & set(models))


def _servers() -> set[str]:
    """This process's parent, and the parent's: a stub, or an engine process, which a stub starts."""
    parent = os.getppid()
    with suppress(OSError):
        return {str(parent), Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1]}
    return {str(parent)}


def _commands() -> Iterator[list[str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().decode(errors="replace").split("\0")
