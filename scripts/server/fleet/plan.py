"""What a fleet consists of, checked before anything is started."""

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.server.gpu_lock import locked_gpu, visible_gpus
from scripts.server.mps import DEVICES
from scripts.server.ports import Ports

LOCAL = "127.0.0.1"
PORTS_PER_SERVER = 3


class FleetError(RuntimeError):
    """The fleet cannot be started, or cannot go on; the message says what to do."""


@dataclass(frozen=True)
class ServerPlan:
    number: int
    gpu: str
    """UUID; empty for a server on the CPU."""
    ports: Ports
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {DEVICES: self.gpu}

    @property
    def drain_file(self) -> Path:
        return self.folder / "drain"


@dataclass(frozen=True)
class FleetPlan:
    servers: tuple[ServerPlan, ...]
    folder: Path
    address: str = LOCAL
    port: int = 8001
    admin_port: int = 9901

    @property
    def endpoints_file(self) -> Path:
        return self.folder / "endpoints.json"

    @property
    def config_file(self) -> Path:
        return self.folder / "envoy.json"


def plan_servers(
    count: int | None, first_port: int, folder: Path, environment: Mapping[str, str]
) -> tuple[ServerPlan, ...]:
    """One server for each visible GPU, the first `count` of them; `count` servers on the CPU of a machine without one.

    Raises FleetError, and ServerError for a device that does not exist.
    """
    gpus = visible_gpus(environment)
    if count is None and not gpus:
        raise FleetError("no GPU is visible: --servers N starts N servers on the CPU")
    if gpus and count is not None and count > len(gpus):
        raise FleetError(f"--servers {count}: {len(gpus)} GPUs are visible, and each takes one server")
    return tuple(
        ServerPlan(
            number,
            gpus[number] if gpus else "",
            _ports(first_port + PORTS_PER_SERVER * number),
            folder.resolve() / str(number),
        )
        for number in range(len(gpus) if count is None else count)
    )


def _ports(first: int) -> Ports:
    return Ports(grpc=first + 1, http=first, metrics=first + 2)


@contextmanager
def reserved(plan: FleetPlan) -> Iterator[None]:
    """Holds the fleet's folder. Raises FleetError or ServerError if that, a port or a GPU is taken."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(plan.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FleetError(
                f"another fleet runs in {plan.folder}: stop it, or choose another --build-folder"
            ) from None
        check_ports(plan)
        check_gpus(plan.servers)
        yield
    finally:
        os.close(descriptor)


def check_ports(plan: FleetPlan) -> None:
    """Raises FleetError for a port that is used twice, or by another process."""
    wanted = [(plan.address, plan.port, "--port"), (LOCAL, plan.admin_port, "--admin-port")]
    for server in plan.servers:
        wanted += [(LOCAL, port, "--first-port") for port in vars(server.ports).values()]
    seen = set[int]()
    for address, port, option in wanted:
        if not 0 < port < 65536:
            raise FleetError(f"port {port} is not between 1 and 65535: choose another {option}")
        if port in seen:
            raise FleetError(f"port {port} is needed twice: choose another {option}")
        seen.add(port)
        if problem := _bind_problem(address, port):
            raise FleetError(f"port {port} of {address} cannot be used ({problem}): choose another {option}")


def check_gpus(servers: Sequence[ServerPlan]) -> None:
    """Raises ServerError for a GPU that another server uses. The launchers take the locks."""
    for server in servers:
        if server.gpu:
            with locked_gpu(server.gpu, exclusively=True):
                pass


def _bind_problem(address: str, port: int) -> str | None:
    with socket.socket() as probe:
        # Connections of a fleet that has just ended do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.strerror or str(error)
    return None
