"""A stand-in for nvidia-cuda-mps-control, which records its daemons and the commands that they take."""

from dataclasses import dataclass
from pathlib import Path

import psutil

LISTENS = 'echo $$ >"$pipes/pid"; mkfifo "$pipes/control"; read -r _ <"$pipes/control"; exit 0'
"""Shell code of a daemon that ends at the command quit."""
SCRIPT = """#!/bin/bash
pipes=$CUDA_MPS_PIPE_DIRECTORY
if [ "${{1:-}}" = -f ]; then
    env >'{record}/daemon.env'
    stat --format %a "$pipes" >'{record}/mode'
    echo $$ >>'{record}/daemons'
    {daemon}
fi
read -r command
[ -p "$pipes/control" ] && kill -0 "$(cat "$pipes/pid")" 2>/dev/null || exit 1
echo "$command" >>'{record}/commands'
[ "$command" != quit ] || echo quit >"$pipes/control"
"""


@dataclass(frozen=True)
class MpsControl:
    folder: Path
    """Holds the program; its records are beside it."""

    def install(self, daemon: str = LISTENS) -> None:
        """`daemon` is shell code; $pipes is its CUDA_MPS_PIPE_DIRECTORY."""
        self.folder.mkdir(exist_ok=True)
        program = self.folder / "nvidia-cuda-mps-control"
        program.write_text(SCRIPT.format(record=self.folder.parent, daemon=daemon))
        program.chmod(0o755)

    @property
    def daemons(self) -> list[int]:
        """Process ids of all daemons that were started."""
        return list(map(int, self._lines("daemons")))

    @property
    def running(self) -> list[int]:
        return [daemon for daemon in self.daemons if psutil.pid_exists(daemon)]

    @property
    def commands(self) -> list[str]:
        return self._lines("commands")

    @property
    def mode(self) -> str:
        """Permissions of the last daemon's folder, octal."""
        return self._lines("mode")[0]

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the last daemon."""
        return self.recorded_environment("daemon.env")

    def recorded_environment(self, name: str) -> dict[str, str]:
        """The output of `env` in a file beside the folder."""
        return dict(line.split("=", 1) for line in self._lines(name) if "=" in line)

    def _lines(self, name: str) -> list[str]:
        file = self.folder.parent / name
        return file.read_text().splitlines() if file.exists() else []
