"""GPUs of this machine, and who may use one: a fleet's server alone, or servers that were started by hand."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scripts.server.installation import ServerError
from scripts.server.mps import DEVICES

QUERY = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
QUERY_SECONDS = 30.0
LOCKS = Path(tempfile.gettempdir())
# What CUDA reads as no device.
NO_DEVICE = ("", "-1")


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """UUIDs of the GPUs that CUDA_VISIBLE_DEVICES allows, in its order; all of them without it.

    None without a driver. Raises ServerError for a device that this machine does not have.
    """
    gpus = _gpus()
    allowed = environment.get(DEVICES)
    if allowed is None or not gpus:
        return gpus
    if allowed in NO_DEVICE:
        return []
    return [_find(device.strip(), gpus) for device in allowed.split(",")]


@contextmanager
def locked_gpu(uuid: str, *, exclusively: bool) -> Iterator[None]:
    """Holds the lock of a GPU. Raises ServerError if another server holds it, and one of the two is exclusive."""
    try:
        descriptor = os.open(LOCKS / f"qwen3-tts-{uuid}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ServerError(f"the lock of {uuid} cannot be opened: {error}") from None
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError:
            raise ServerError(f"{uuid} is used by another server: stop it, or set {DEVICES} to another GPU") from None
        yield
    finally:
        os.close(descriptor)


def _gpus() -> list[str]:
    """UUIDs in the order of the PCI bus, which CUDA has for GPUs of one kind."""
    if shutil.which(QUERY[0]) is None:
        return []
    try:
        found = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True)
    except (subprocess.SubprocessError, OSError):
        return []
    return [line.strip() for line in found.stdout.splitlines() if line.startswith("GPU-")]


def _find(device: str, gpus: list[str]) -> str:
    if device.isdecimal() and int(device) < len(gpus):
        return gpus[int(device)]
    named = [gpu for gpu in gpus if device and gpu.startswith(device)]
    if len(named) != 1:
        raise ServerError(f"{DEVICES} names '{device}': this machine has the GPUs {', '.join(gpus)}")
    return named[0]
