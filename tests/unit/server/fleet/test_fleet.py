"""A fleet of stub servers behind a real Envoy: it starts, drains and ends as one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from scripts.server.fleet import admin
from tests.fakes.gateway import RunningGateway
from tests.ports import free_ports
from tests.subprocesses import same_imports

ROOT = Path(__file__).parents[4]
PATIENCE = 60.0
STUB = [sys.executable, "-m", "tests.fakes.launcher"]


class RunningFleet:
    """A process of the fleet whose servers are `servers`, commands to which their ports are added."""

    def __init__(self, folder: Path, *servers: list[str]) -> None:
        self.folder, self.log_file = folder / "fleet", folder / "log"
        ports = free_ports(2 + 3 * len(servers))
        self.port, self.admin_port = ports[:2]
        plans = [
            f"ServerPlan({number}, '', Ports(*{ports[2 + 3 * number :][:3]}), folder / '{number}')"
            for number in range(len(servers))
        ]
        program = (
            "import sys\nfrom pathlib import Path\nfrom scripts.server.ports import Ports\n"
            "from scripts.server.fleet.program import find_envoy\nfrom scripts.server.fleet.fleet import Fleet\n"
            "from scripts.server.fleet.plan import FleetError, FleetPlan, ServerPlan, reserved\n"
            f"folder, commands = Path({str(self.folder)!r}), {servers!r}\n"
            f"plan = FleetPlan(({''.join(f'{one},' for one in plans)}), folder, '127.0.0.1', *{ports[:2]})\n"
            "class Mixed(Fleet):\n"
            "    def _command_of(self, plan):\n"
            "        return [*commands[plan.number], *plan.ports.options]\n"
            "try:\n"
            "    with reserved(plan):\n"
            "        options = ('--concurrency', '1', '--disable-hot-restart', '--log-level', 'warning')\n"
            "        sys.exit(Mixed(plan, [str(find_envoy()), *options], []).run())\n"
            "except FleetError as error:\n"
            "    sys.exit(f'error: {error}')\n"
        )
        with self.log_file.open("wb") as log:
            command = [sys.executable, "-c", program]
            self.process = subprocess.Popen(command, cwd=ROOT, env=same_imports(), stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def healthy(self) -> list[int]:
        return admin.healthy(self.admin_port)

    def launchers(self) -> dict[int, int]:
        """Process ids by the numbers of the servers."""
        lines = re.findall(r"^server (\d+) \| stub (\d+) serves", self.log, re.MULTILINE)
        return {int(server): int(process) for server, process in lines}

    def is_ready(self) -> bool:
        """Whether a server says so through Envoy."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                return bool(stub.ModelReady(service_pb2.ModelReadyRequest(name="qwen3_tts"), timeout=10).ready)
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                return False


@contextmanager
def running(folder: Path, *servers: list[str]) -> Iterator[RunningFleet]:
    fleet = RunningFleet(folder, *servers)
    tree = psutil.Process(fleet.process.pid)
    parts: list[psutil.Process] = []
    try:
        yield fleet
        assert fleet.process.poll() is not None
        parts = [part for part in psutil.process_iter(["environ"]) if str(folder) in str(part.info["environ"])]
        assert parts == [], "left running"
    finally:
        for part in [*parts, *(tree.children(recursive=True) if tree.is_running() else [])]:
            part.kill()
        fleet.process.kill()
        fleet.process.wait()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RunningFleet]:
    """Two servers that Envoy knows to be ready; the test ends it."""
    with running(tmp_path, STUB, STUB) as fleet:
        fleet.wait_for(lambda: "2 of 2 servers are ready" in fleet.log and len(fleet.healthy()) == 2)
        yield fleet


def end(fleet: RunningFleet) -> None:
    fleet.process.terminate()
    for server in range(2):
        (fleet.folder / str(server) / "drained").touch()
    assert fleet.process.wait(PATIENCE) == 0


def test_each_line_has_the_name_of_its_process(fleet: RunningFleet) -> None:
    end(fleet)
    names = {line.split(" | ")[0] for line in fleet.log.splitlines()}
    assert {"fleet", "server 0", "server 1"} <= names <= {"fleet", "server 0", "server 1", "envoy"}


def test_servers_answer_behind_one_address(fleet: RunningFleet) -> None:
    assert fleet.is_ready()
    end(fleet)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_all_servers_and_ends_everything(number: signal.Signals, fleet: RunningFleet) -> None:
    fleet.process.send_signal(number)
    fleet.wait_for(lambda: all((fleet.folder / str(server) / "drain").exists() for server in range(2)))
    fleet.wait_for(lambda: not fleet.healthy())
    assert not fleet.is_ready(), "Envoy still answers while streams finish"
    end(fleet)


def test_a_second_signal_ends_the_servers_that_drain(fleet: RunningFleet) -> None:
    fleet.process.terminate()
    fleet.wait_for(lambda: all((fleet.folder / str(server) / "drain").exists() for server in range(2)))
    fleet.process.terminate()
    assert fleet.process.wait(PATIENCE) == 0


def test_envoy_gives_a_server_that_drains_no_more_streams(fleet: RunningFleet) -> None:
    os.kill(fleet.launchers()[0], signal.SIGTERM)
    fleet.wait_for(lambda: len(fleet.healthy()) == 1)
    assert fleet.is_ready()
    end(fleet)


def test_a_server_that_was_drained_comes_back_on_demand(fleet: RunningFleet) -> None:
    first = fleet.launchers()[0]
    os.kill(first, signal.SIGTERM)
    (fleet.folder / "0" / "drained").touch()
    fleet.wait_for(lambda: re.search(r"ended$", fleet.log, re.MULTILINE))
    assert fleet.is_ready()
    (fleet.folder / "0" / "drained").unlink()
    fleet.process.send_signal(signal.SIGUSR1)
    fleet.wait_for(lambda: fleet.launchers()[0] != first and len(fleet.healthy()) == 2)
    end(fleet)


def test_envoy_is_started_again(fleet: RunningFleet) -> None:
    [envoy] = [child for child in psutil.Process(fleet.process.pid).children() if child.name() == "envoy"]
    envoy.kill()
    fleet.wait_for(lambda: "Envoy has ended; it is started again" in fleet.log)
    fleet.wait_for(lambda: fleet.is_ready())
    end(fleet)


def test_a_server_that_does_not_start_ends_the_fleet(tmp_path: Path) -> None:
    with running(tmp_path, ["sh", "-c", "exec sleep 600"], ["sh", "-c", "echo no checkpoint; exit 3"]) as fleet:
        assert fleet.process.wait(PATIENCE) == 1
        assert "server 1 | no checkpoint" in fleet.log
        assert fleet.log.splitlines()[-1] == "error: server 1 did not start; its lines above say why"


def test_a_server_that_serves_is_drained_when_another_does_not_start(tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    with running(tmp_path, STUB, ["sh", "-c", f"until [ -e {fails} ]; do sleep 0.05; done; exit 3"]) as fleet:
        fleet.wait_for(fleet.launchers)
        fails.touch()
        fleet.wait_for((fleet.folder / "0" / "drain").exists)
        (fleet.folder / "0" / "drained").touch()
        assert fleet.process.wait(PATIENCE) == 1
        assert fleet.log.splitlines()[-1] == "error: server 1 did not start; its lines above say why"


def test_a_server_that_ends_later_leaves_the_others(fleet: RunningFleet) -> None:
    os.kill(fleet.launchers()[0], signal.SIGKILL)
    fleet.wait_for(lambda: re.search(r"failed$", fleet.log, re.MULTILINE))
    assert fleet.is_ready()
    end(fleet)


def test_the_last_server_ends_the_fleet(fleet: RunningFleet) -> None:
    for launcher in fleet.launchers().values():
        os.kill(launcher, signal.SIGKILL)
    assert fleet.process.wait(PATIENCE) == 1
    assert fleet.log.splitlines()[-1] == "error: no server is left"


def test_a_gateway_tries_again_where_nothing_was_sent(fleet: RunningFleet) -> None:
    """Envoy is its only URL; the killed server holds one of two requests, and has not answered."""
    late = json.dumps({"chunks": [[5000, 5]]})
    with RunningGateway(f"127.0.0.1:{fleet.port}") as gateway, ThreadPoolExecutor(2) as pool:
        url = f"{gateway.url}/v1/audio/speech"
        assert httpx.post(url, json={"input": json.dumps({"chunks": [[0, 1]]})}).status_code == 200
        answers = [pool.submit(httpx.post, url, json={"input": late}, timeout=30) for _ in range(2)]
        fleet.wait_for(lambda: admin.counts(fleet.admin_port, "rq_active") == [1, 1])
        os.kill(fleet.launchers()[0], signal.SIGKILL)
        assert [answer.result(PATIENCE).status_code for answer in answers] == [200, 200]
    end(fleet)


def test_a_port_of_a_running_fleet_is_refused(fleet: RunningFleet, tmp_path: Path) -> None:
    options = ["--servers", "1", "--port", str(fleet.port), "--build-folder", str(tmp_path / "second")]
    options += ["--model-repository", str(tmp_path)]
    environment = same_imports() | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "scripts.server", "fleet", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    problem = f"port {fleet.port} of 127.0.0.1 cannot be used (Address already in use): choose another --port"
    assert done.stderr == f"error: {problem}\n"
    end(fleet)
