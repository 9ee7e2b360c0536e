"""Resources of the server's processes."""

from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
MIB = 1 << 20


@dataclass(frozen=True)
class Figures:
    """Totals over all processes; `shared_mib` is the usage of /dev/shm."""

    rss_mib: float
    fds: int
    threads: int
    shared_mib: float

    @classmethod
    def of(cls, processes: list[psutil.Process]) -> "Figures":
        return cls(
            round(sum(process.memory_info().rss for process in processes) / MIB, 1),
            sum(process.num_fds() for process in processes),
            sum(process.num_threads() for process in processes),
            round(sum(file.stat().st_blocks * 512 for file in SHARED_MEMORY.iterdir() if file.is_file()) / MIB, 1),
        )

    def named(self, when: str) -> dict[str, float]:
        return {f"{name}_{when}": value for name, value in vars(self).items()}
