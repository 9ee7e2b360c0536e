"""What scripts/quickstart.sh takes on a fresh clone, without an environment or a cache: memory, disk, download, time.

python -m scripts.benchmarks.quickstart --output docs/benchmarks/quickstart.json
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from qwen3_tts_client.records.environment import environment
from qwen3_tts_engine.config import ENVIRONMENT_PREFIX
from scripts.benchmarks.common import origin_of
from scripts.server.ports import Ports

ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.25
# Folders of the clone that a start fills.
FILLED = {"environment": ".venv", "backends_and_log": "build", "models": "model_repository"}
DOWNLOAD = re.compile(r"^\s*Downloading \S+ \(([\d.]+) (bytes|[kMG]B)\)", re.MULTILINE)
LOCAL = re.compile(r"^\s*Processing (/\S+\.whl)", re.MULTILINE)
BYTES = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def main(
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
    folder: Annotated[Path | None, typer.Option(help="where the clone is made, and deleted")] = None,
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        clone, cache = Path(made) / "clone", Path(made) / "cache"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
        before = disk(clone)
        rows = [{"start": start, **quickstart(clone, cache)} for start in ("first", "second")]
        after = disk(clone)
    figures = {"rows": rows, "disk_mb": {name: megabytes(after[name] - before[name]) for name in after}}
    print(json.dumps(figures, indent=1))
    if output:
        record = origin_of("scripts.benchmarks.quickstart", environment()) | figures
        output.write_text(json.dumps(record, indent=1) + "\n")


def quickstart(clone: Path, cache: Path) -> dict[str, Any]:
    """Raises subprocess.CalledProcessError."""
    command = [str(clone / "scripts" / "quickstart.sh"), *Ports.free().options]
    started_s, before_s = time.monotonic(), cpu_seconds()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=clone, env=bare_environment(cache), stdout=log, stderr=subprocess.STDOUT
        )
        peak = peak_memory(process)
        took_s = time.monotonic() - started_s
        log.seek(0)
        text = log.read()
    if process.returncode:
        print(text, file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command)
    return {
        "seconds": round(took_s),
        "cpu_seconds": round(cpu_seconds() - before_s),
        "peak_memory_mb": megabytes(peak),
        "downloaded_mb": megabytes(downloaded(text)),
    }


def bare_environment(cache: Path) -> dict[str, str]:
    """This process's environment without its virtual environment, its settings and pip's cache."""
    own = str(Path(sys.prefix) / "bin")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    for name in ("VIRTUAL_ENV", "PYTHONPATH"):
        kept.pop(name, None)
    path = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part != own)
    return kept | {"PATH": path, "PIP_CACHE_DIR": str(cache), "COLUMNS": "200"}


def peak_memory(process: subprocess.Popen[Any]) -> int:
    """The largest sum of bytes of a process and its descendants until it ends; shared pages count once."""
    peak, root = 0, psutil.Process(process.pid)
    while process.poll() is None:
        peak = max(peak, sum(map(memory, _tree(root))))
        time.sleep(POLL_SECONDS)
    return peak


def memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def cpu_seconds() -> float:
    """Of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def downloaded(log: str) -> float:
    """Bytes by the lines of pip; wheels of a folder on this machine count as well."""
    local = sum(Path(wheel).stat().st_size for wheel in LOCAL.findall(log))
    return local + sum(float(size) * BYTES[unit] for size, unit in DOWNLOAD.findall(log))


def disk(clone: Path) -> dict[str, int]:
    """Bytes on disk by what they are for."""
    return {name: size_of(clone / folder) for name, folder in FILLED.items()}


def size_of(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def megabytes(count: float) -> int:
    return round(count / 1e6)


if __name__ == "__main__":
    typer.run(main)
