"""What a fleet consists of, and what it refuses before anything is started."""

import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.server import gpu_lock
from scripts.server.fleet import plan
from scripts.server.fleet.plan import FleetError, FleetPlan, ServerPlan, check_ports, plan_servers, reserved
from scripts.server.fleet.table import State, table
from scripts.server.gpu_lock import locked_gpu
from scripts.server.installation import ServerError
from scripts.server.mps import DEVICES
from scripts.server.ports import Ports
from tests.ports import free_ports

GPUS = ["GPU-a", "GPU-b", "GPU-c"]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "visible_gpus", lambda environment: GPUS)
    monkeypatch.setattr(gpu_lock, "LOCKS", tmp_path)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "visible_gpus", lambda environment: [])


@pytest.fixture
def fleet(tmp_path: Path) -> FleetPlan:
    """Two servers on the CPU and free ports."""
    ports = iter(free_ports(8))
    servers = tuple(
        ServerPlan(number, "", Ports(next(ports), next(ports), next(ports)), tmp_path / "fleet" / str(number))
        for number in range(2)
    )
    return FleetPlan(servers, tmp_path / "fleet", port=next(ports), admin_port=next(ports))


@pytest.mark.usefixtures("gpus")
def test_each_gpu_gets_a_server_by_its_uuid(tmp_path: Path) -> None:
    """An index would mean another device to the MPS daemon."""
    servers = plan_servers(None, 8100, tmp_path, {})
    assert [server.environment for server in servers] == [{DEVICES: uuid} for uuid in GPUS]
    assert servers[1].ports == Ports(grpc=8104, http=8103, metrics=8105)
    ports = [port for server in servers for port in vars(server.ports).values()]
    assert len(set(ports)) == 9
    assert len({server.folder for server in servers}) == 3


@pytest.mark.usefixtures("gpus")
def test_a_number_takes_the_first_gpus(tmp_path: Path) -> None:
    assert [server.gpu for server in plan_servers(2, 8100, tmp_path, {})] == GPUS[:2]


@pytest.mark.usefixtures("gpus")
def test_refuses_more_servers_than_gpus(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"^--servers 4: 3 GPUs are visible, and each takes one server$"):
        plan_servers(4, 8100, tmp_path, {})


@pytest.mark.usefixtures("no_gpus")
def test_servers_on_the_cpu_see_no_gpu(tmp_path: Path) -> None:
    assert [server.environment for server in plan_servers(2, 8100, tmp_path, {})] == [{DEVICES: ""}] * 2


@pytest.mark.usefixtures("no_gpus")
def test_requires_a_number_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"^no GPU is visible: --servers N starts N servers on the CPU$"):
        plan_servers(None, 8100, tmp_path, {})


def test_accepts_free_ports(fleet: FleetPlan) -> None:
    with reserved(fleet):
        pass


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize("option", ["port", "admin_port"])
def test_names_a_port_of_envoy_that_is_taken(option: str, fleet: FleetPlan, taken: int) -> None:
    ports: dict[str, Any] = {option: taken}
    busy = dataclasses.replace(fleet, **ports)
    name = f"--{option.replace('_', '-')}"
    message = rf"^port {taken} of 127\.0\.0\.1 cannot be used \(Address already in use\): choose another {name}$"
    with pytest.raises(FleetError, match=message), reserved(busy):
        pass


def test_names_a_port_of_a_server_that_is_taken(fleet: FleetPlan, taken: int) -> None:
    server = dataclasses.replace(fleet.servers[1], ports=Ports(1025, taken, 1026))
    with pytest.raises(FleetError, match=f"^port {taken} .* choose another --first-port$"):
        check_ports(dataclasses.replace(fleet, servers=(fleet.servers[0], server)))


def test_names_a_port_that_is_needed_twice(fleet: FleetPlan) -> None:
    with pytest.raises(FleetError, match=f"^port {fleet.port} is needed twice: choose another --admin-port$"):
        check_ports(dataclasses.replace(fleet, admin_port=fleet.port))


@pytest.mark.parametrize("port", [0, 65536])
def test_names_a_port_that_does_not_exist(port: int, fleet: FleetPlan) -> None:
    with pytest.raises(FleetError, match=f"^port {port} is not between 1 and 65535: choose another --port$"):
        check_ports(dataclasses.replace(fleet, port=port))


def test_refuses_the_folder_of_another_fleet(fleet: FleetPlan) -> None:
    ports = free_ports(2)
    other = dataclasses.replace(fleet, servers=(), port=ports[0], admin_port=ports[1])
    message = f"^another fleet runs in {fleet.folder}: stop it, or choose another --build-folder$"
    with reserved(fleet), pytest.raises(FleetError, match=message), reserved(other):
        pass


@pytest.mark.usefixtures("gpus")
def test_refuses_a_gpu_of_another_server(fleet: FleetPlan) -> None:
    server = dataclasses.replace(fleet.servers[0], gpu=GPUS[1])
    on_gpu = dataclasses.replace(fleet, servers=(server,))
    with (
        locked_gpu(GPUS[1], exclusively=False),
        pytest.raises(ServerError, match=f"^{GPUS[1]} is used by another server: stop it"),
        reserved(on_gpu),
    ):
        pass
    with reserved(on_gpu):
        pass


def test_table_shows_who_is_ready(tmp_path: Path) -> None:
    first = ServerPlan(0, "GPU-1a2b", Ports(8101, 8100, 8102), tmp_path)
    second = ServerPlan(1, "", Ports(8104, 8103, 8105), tmp_path)
    rows = [(first, 4000, State.READY), (second, 40001, State.DRAINING)]
    assert list(table(rows, "127.0.0.1:8001")) == [
        "server  GPU       gRPC  HTTP  metrics  process  state",
        "0       GPU-1a2b  8101  8100  8102     4000     ready",
        "1       CPU       8104  8103  8105     40001    draining",
        "1 of 2 servers are ready behind 127.0.0.1:8001",
    ]
