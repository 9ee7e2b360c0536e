"""Resources of the server's processes."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
MIB = 1 << 20


@dataclass(frozen=True)
class Figures:
    """Totals over all processes; `fds` are open files but sockets, `shared_mib` are the files of /dev/shm in use."""

    rss_mib: float
    fds: int
    sockets: int
    threads: int
    shared_mib: float

    @classmethod
    def of(cls, processes: list[psutil.Process]) -> "Figures":
        files = [target for process in processes for target in open_files(process)]
        sockets = sum(target.startswith("socket:") for target in files)
        return cls(
            round(sum(process.memory_info().rss for process in processes) / MIB, 1),
            len(files) - sockets,
            sockets,
            sum(process.num_threads() for process in processes),
            round(sum(file.stat().st_blocks * 512 for file in shared_files(processes)) / MIB, 1),
        )

    def named(self, when: str) -> dict[str, float]:
        return {f"{name}_{when}": value for name, value in vars(self).items()}


def shared_files(processes: list[psutil.Process]) -> set[Path]:
    """Files of /dev/shm that processes map."""
    mapped = {Path(part.path) for process in processes for part in process.memory_maps()}
    return {path for path in mapped if path.parent == SHARED_MEMORY and path.is_file()}


def open_files(process: psutil.Process) -> Iterator[str]:
    """What each file descriptor of a process leads to."""
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            yield os.readlink(link)
