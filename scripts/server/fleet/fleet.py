"""Runs the servers of a plan behind Envoy, and tells Envoy which of them are draining."""

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType

from scripts.server.drain import FILE_VARIABLE, replace_file, responds
from scripts.server.fleet.child import Child, print_line
from scripts.server.fleet.envoy import READY, Endpoint, endpoints_text, watched_config
from scripts.server.fleet.plan import FleetError, FleetPlan, ServerPlan
from scripts.server.fleet.table import State, table
from scripts.server.supervisor import adopt_orphans, end_orphans

# A server drains for longer before it refuses streams (drain.NOTICE_SECONDS).
POLL_SECONDS = 0.1
PROBE_SECONDS = 0.5
ENVOY_SECONDS = 20.0
NAME = "fleet"


class Server:
    """A launcher (scripts/server/serve.py), which restarts its tritonserver by itself."""

    def __init__(self, plan: ServerPlan, command: Sequence[str]) -> None:
        self.plan = plan
        self.is_ready = self.was_ready = False
        self._command = command
        self.start()

    def start(self) -> None:
        self.plan.folder.mkdir(parents=True, exist_ok=True)
        self.plan.drain_file.unlink(missing_ok=True)
        environment = os.environ | self.plan.environment | {FILE_VARIABLE: str(self.plan.drain_file)}
        self.child = Child(f"server {self.plan.number}", self._command, environment)

    @property
    def state(self) -> State:
        if (code := self.child.poll()) is not None:
            return State.FAILED if code and not self.plan.drain_file.exists() else State.ENDED
        if self.plan.drain_file.exists():
            return State.DRAINING
        if self.is_ready:
            return State.READY
        return State.RESTARTING if self.was_ready else State.STARTING

    def probe(self) -> None:
        self.is_ready = responds(f"http://localhost:{self.plan.ports.http}{READY}")
        self.was_ready = self.was_ready or self.is_ready

    def takes_streams(self) -> bool:
        """False once it drains. Whether it is ready is left to Envoy's health checks."""
        return self.child.poll() is None and not self.plan.drain_file.exists()


class Fleet:
    """One `run`: it starts everything, and leaves nothing running."""

    def __init__(self, plan: FleetPlan, envoy: Sequence[str], server_command: Sequence[str]) -> None:
        """`envoy` is its program and options, `server_command` the launcher without what differs between servers."""
        self._plan = plan
        self._envoy_command = [*envoy, "--config-path", str(plan.config_file)]
        self._server_command = server_command
        self._servers: list[Server] = []
        self._envoy: Child | None = None
        self._signals = 0
        self._stopping, self._restart_ended = threading.Event(), threading.Event()
        self._shown: list[State] = []
        self._listed = ""

    def run(self) -> int:
        """Runs until SIGINT or SIGTERM; returns the exit code. Raises FleetError if a part does not start, or all end.

        SIGUSR1 starts the servers again that have ended.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGUSR1, lambda *_: self._restart_ended.set())
        adopt_orphans()
        try:
            self._start()
            while not self._stopping.wait(POLL_SECONDS):
                self._watch()
        finally:
            self._stop()
        return 0

    def _start(self) -> None:
        self._list_endpoints()
        config = watched_config(self._plan.endpoints_file, self._plan.address, self._plan.port, self._plan.admin_port)
        self._plan.config_file.write_text(json.dumps(config, indent=2))
        self._start_envoy()
        self._wait_for_envoy()
        for plan in self._plan.servers:
            if not self._stopping.is_set():
                self._servers.append(Server(plan, self._command_of(plan)))
        threading.Thread(target=self._probe_forever, name="probe", daemon=True).start()

    def _command_of(self, plan: ServerPlan) -> list[str]:
        return [*self._server_command, f"--build-folder={plan.folder}", "--exclusive-gpu", *plan.ports.options]

    def _start_envoy(self) -> None:
        self._envoy = Child("envoy", self._envoy_command, os.environ)

    def _wait_for_envoy(self) -> None:
        """Raises FleetError. Envoy is ready with no server: it answers UNAVAILABLE."""
        deadline = time.monotonic() + ENVOY_SECONDS
        while not responds(f"http://127.0.0.1:{self._plan.admin_port}/ready"):
            self._check_envoy()
            if time.monotonic() > deadline:
                raise FleetError(f"Envoy was not ready after {ENVOY_SECONDS:g} s; its lines above say why")
            if self._stopping.wait(POLL_SECONDS):
                return

    def _check_envoy(self) -> None:
        if self._envoy is not None and (code := self._envoy.poll()) is not None:
            raise FleetError(f"Envoy ended with exit code {code}; its lines above say why")

    def _watch(self) -> None:
        if self._restart_ended.is_set():
            self._restart_ended.clear()
            for server in self._servers:
                if server.child.poll() is not None:
                    server.start()
        self._list_endpoints()
        self._show()
        if self._stopping.is_set():  # by a signal that may have ended its parts, too
            return
        self._check_servers()
        if self._envoy is not None and self._envoy.poll() is not None:
            print_line(NAME, "Envoy has ended; it is started again")
            self._start_envoy()
            self._wait_for_envoy()

    def _check_servers(self) -> None:
        """Raises FleetError if a server does not start, or the last one has ended."""
        for server in self._servers:
            if server.state is State.FAILED and not server.was_ready:
                raise FleetError(f"server {server.plan.number} did not start; its lines above say why")
        if all(server.child.poll() is not None for server in self._servers):
            raise FleetError("no server is left")

    def _list_endpoints(self) -> None:
        """Writes the servers for Envoy, when one has begun to drain, or has come back."""
        draining = {server.plan for server in self._servers if self._stopping.is_set() or not server.takes_streams()}
        endpoints = [
            Endpoint(plan.ports.grpc, plan.ports.http, is_draining=plan in draining) for plan in self._plan.servers
        ]
        if (text := endpoints_text(endpoints)) != self._listed:
            replace_file(self._plan.endpoints_file, text)
            self._listed = text

    def _show(self) -> None:
        states = [server.state for server in self._servers]
        if states != self._shown:
            self._shown = states
            rows = [(server.plan, server.child.pid, server.state) for server in self._servers]
            for line in table(rows, f"{self._plan.address}:{self._plan.port}"):
                print_line(NAME, line)

    def _probe_forever(self) -> None:
        while True:
            for server in self._servers:
                server.probe()
            time.sleep(PROBE_SECONDS)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._stopping.set()

    def _stop(self) -> None:
        """Drains the servers, then ends Envoy; a further signal ends the servers' streams."""
        self._stopping.set()
        self._list_endpoints()
        forwarded = 0
        while any(server.child.poll() is None for server in self._servers):
            if forwarded < max(1, self._signals):
                forwarded += 1
                for server in self._servers:
                    server.child.signal(signal.SIGTERM)
            self._show()
            time.sleep(POLL_SECONDS)
        parts = [server.child for server in self._servers]
        if self._envoy is not None:
            self._envoy.end()
            parts.append(self._envoy)
        end_orphans()
        for part in parts:
            part.print_rest()
