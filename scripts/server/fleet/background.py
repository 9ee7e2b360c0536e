"""A fleet in a process of its own, for benchmarks and tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from scripts.server.fleet import admin
from scripts.server.fleet.plan import PORTS_PER_SERVER, FleetError
from scripts.server.ports import Ports
from scripts.server.tritonserver import is_ready

ROOT = Path(__file__).parents[3]
MODEL = "qwen3_tts"
POLL_SECONDS = 0.02
# Envoy's workers hear of a change a moment after its admin interface shows it.
WORKERS_SECONDS = 0.2
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class FleetPorts:
    port: int = 8001
    admin: int = 9901
    first: int = 8100

    def server(self, number: int) -> Ports:
        first = self.first + PORTS_PER_SERVER * number
        return Ports(grpc=first + 1, http=first, metrics=first + 2)


class BackgroundFleet:
    """A context manager: starts `scripts.server fleet`, waits until Envoy chooses from all servers, and stops it."""

    def __init__(
        self,
        servers: int,
        folder: Path,
        *,
        ports: FleetPorts = FleetPorts(),
        options: Sequence[str] = (),
        environment: Mapping[str, str] = {},
        patience: float = 60.0,
    ) -> None:
        """`folder` gets the fleet's files and its log; `patience` is how many seconds the servers may take to start."""
        self.folder, self.ports = folder, ports
        self.servers = [ports.server(number) for number in range(servers)]
        self._options, self._environment, self._patience = options, environment, patience

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "scripts.server", "fleet", f"--servers={len(self.servers)}"]
        command += [f"--build-folder={self.folder}", f"--port={self.ports.port}", f"--admin-port={self.ports.admin}"]
        command += [f"--first-port={self.ports.first}", *self._options]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self.wait_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises FleetError if the fleet did not end well."""
        code = self._end()
        if kind is None and code:
            raise FleetError(f"the fleet ended with exit code {code}; its log is {self.folder / 'log'}")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def wait_ready(self) -> None:
        """Waits until Envoy chooses from all servers. Raises FleetError."""
        deadline = time.monotonic() + self._patience
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise FleetError(f"the fleet did not become ready; its log is {self.folder / 'log'}")
            time.sleep(POLL_SECONDS)
        time.sleep(WORKERS_SECONDS)

    def is_ready(self) -> bool:
        # Envoy answers before the servers are there.
        return all(is_ready(ports, MODEL) for ports in self.servers) and len(self.healthy()) == len(self.servers)

    def healthy(self) -> list[int]:
        """gRPC ports of the servers that Envoy chooses from."""
        return admin.healthy(self.ports.admin)

    def running_streams(self) -> list[int]:
        """Streams of each server, as Envoy counts them."""
        return admin.counts(self.ports.admin, "rq_active")

    def launcher(self, server: int) -> psutil.Process:
        option = f"--http-port={self.servers[server].http}"
        [found] = [child for child in psutil.Process(self.process.pid).children() if option in child.cmdline()]
        return found

    def tritonserver(self, server: int) -> psutil.Process:
        [found] = [child for child in self.launcher(server).children() if child.name() == "tritonserver"]
        return found

    def _end(self) -> int:
        """Drains and ends the fleet, or else kills it; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
