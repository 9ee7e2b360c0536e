"""Hardware and software of a run."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("nvidia-pytriton", "tritonclient", "grpcio", "torch", "tensorrt", "onnxruntime", "numpy")


def environment() -> dict[str, Any]:
    """GPU, driver, image or packages, commit and machine of this client."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "gpus": _gpus(),
        "image": os.environ.get("NVIDIA_TRITON_SERVER_VERSION"),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """GIT_COMMIT (set for a copy without its repository), else the checkout's commit, with "-dirty" if modified."""
    if given := os.environ.get("GIT_COMMIT"):
        return given
    here = Path(__file__).parent
    found = _output("git", "-C", str(here), "rev-parse", "HEAD")
    if found and _output("git", "-C", str(here), "status", "--porcelain", "--untracked-files=no"):
        return f"{found}-dirty"
    return found


def _gpus() -> list[dict[str, str]]:
    names = ("name", "driver_version", "memory.total", "mig.mode.current")
    table = _output("nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader") or ""
    return [dict(zip(names, row.split(", "), strict=True)) for row in table.splitlines()]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
