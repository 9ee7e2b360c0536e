"""MPS in the container: docker/serve.sh with stand-ins for tritonserver, the control program and Python."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.embedded import mps, mps_probe
from scripts.embedded.mps import COST, DEVICES, LOGS, MPS_VARIABLE, PIPES
from tests.e2e.serving import eventually
from tests.fakes.mps_control import LISTENS, MpsControl

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"


class Container:
    """Runs serve.sh; the programs' records are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.control = folder, MpsControl(folder / "programs")
        self.control.install()
        self.program("tritonserver", f"env >{folder}/server.env; exit 7")
        self.program("python3", f'env >{folder}/probe.env; echo "$@" >{folder}/probe')
        (folder / "nvidiactl").touch()
        self.drivers = folder / "drivers"
        self.drivers.mkdir()

    def program(self, name: str, body: str) -> None:
        beside = 'case "$*" in *stream_check.py*) exit ;; esac'
        (self.control.folder / name).write_text(f"#!/bin/bash\n{beside}\n{body}\n")
        (self.control.folder / name).chmod(0o755)

    def start(self, **environment: str) -> subprocess.Popen[str]:
        text = (DOCKER / "serve.sh").read_text()
        for real, fake in ((str(mps.GPU), self.folder / "nvidiactl"), (mps.DRIVER_PROGRAMS, self.drivers)):
            assert real in text
            text = text.replace(real, str(fake))
        path = f"{self.control.folder}:{os.environ['PATH']}"
        given = {"PATH": path, "TMPDIR": str(self.folder), "CODEC_FORM": "python"} | environment
        command = ["bash", "-c", text, "serve.sh"]
        return subprocess.Popen(command, env=given, cwd=self.folder, stderr=subprocess.PIPE, text=True)

    def lines(self, **environment: str) -> list[str]:
        """The lines about MPS of a run in which the server ends by itself."""
        with self.start(**environment) as script:
            _, errors = script.communicate(timeout=60)
        assert script.returncode == 7
        return [line for line in errors.splitlines() if "admin-key" not in line]

    def reason(self, **environment: str) -> str:
        """Why the server runs without MPS; nothing of a daemon is left."""
        [line] = self.lines(**environment)
        assert self.control.running == []
        assert not self.control.daemons or not Path(self.control.environment[PIPES]).exists()
        assert {PIPES, LOGS}.isdisjoint(self.server_environment)
        assert line.startswith("mps: ")
        assert line.endswith(f"; {COST}")
        return line.removeprefix("mps: ").removesuffix(f"; {COST}")

    @property
    def server_environment(self) -> dict[str, str]:
        return self.control.recorded_environment("server.env")


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_server_daemon_and_probe_share_a_private_folder(container: Container) -> None:
    [line] = container.lines()
    folder = container.server_environment[PIPES]
    assert container.server_environment[LOGS] == folder
    assert line == f"mps: talker and codec share the GPU, the daemon's logs are in {folder}"
    assert container.control.mode == "700"
    assert container.control.environment[PIPES] == container.control.recorded_environment("probe.env")[PIPES] == folder
    assert len(container.control.daemons) == 1
    assert container.control.commands[0] == "get_server_list"
    assert container.control.commands[-1] == "quit"
    assert container.control.running == []
    assert not Path(folder).exists()


def test_image_holds_the_probe(container: Container) -> None:
    container.lines()
    source = Path(mps_probe.__file__).relative_to(ROOT)
    assert (container.folder / "probe").read_text() == f"-I -S {source.name}\n"
    assert f"COPY docker/build_codec.sh docker/serve.sh {source} " in (DOCKER / "Dockerfile").read_text().replace(
        "--chmod=755 ", ""
    )
    assert f"!{source}" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("given", [{MPS_VARIABLE: "off"}, {DEVICES: ""}, {DEVICES: "-1"}, {PIPES: "/own"}], ids=str)
def test_starts_no_daemon_unless_one_is_wanted(given: dict[str, str], container: Container) -> None:
    assert container.lines(**given) == []
    assert given.items() <= container.server_environment.items()
    assert container.control.daemons == []
    assert container.control.commands == []


def test_starts_no_daemon_without_a_gpu(container: Container) -> None:
    (container.folder / "nvidiactl").unlink()
    assert container.lines() == []
    assert PIPES not in container.server_environment
    assert container.control.daemons == []


def test_rejects_an_unknown_setting(container: Container) -> None:
    with container.start(QWEN3_TTS_MPS="on") as script:
        _, errors = script.communicate(timeout=60)
    assert script.returncode == 2
    assert errors == "QWEN3_TTS_MPS is 'on': it must be auto or off\n"
    assert container.server_environment == {}


def test_names_a_missing_control_program(container: Container) -> None:
    programs = container.control.folder
    (programs / mps.CONTROL).unlink()
    # Without the folders in which this machine may have the program.
    for name in ("bash", "env", "od", "tr", "rm"):
        (programs / name).symlink_to(shutil.which(name) or name)
    reason = container.reason(PATH=str(programs))
    assert reason == "nvidia-cuda-mps-control is not on PATH"


def test_finds_the_control_program_among_those_of_the_driver(container: Container) -> None:
    container.control.folder.joinpath(mps.CONTROL).rename(container.drivers / mps.CONTROL)
    container.lines()
    assert container.server_environment[PIPES]


def test_prints_the_last_output_of_a_daemon_that_ends(container: Container) -> None:
    container.control.install("echo starting; echo 'no permission' >&2; exit 3")
    assert container.reason() == "the MPS daemon cannot be used: no permission"


def test_prints_the_reason_of_a_failed_probe(container: Container) -> None:
    container.program("python3", "echo 'cuInit returned an error' >&2; exit 1")
    assert container.reason() == "the MPS daemon cannot be used: cuInit returned an error"
    assert container.control.commands[-1] == "quit"


def test_kills_a_daemon_that_does_not_quit_and_its_mps_server(container: Container) -> None:
    mps_server = f"sleep 1000 & echo $! >{container.folder}/mps_server"
    container.control.install(f"{mps_server}; {LISTENS.replace('exit 0', 'exec sleep 1000')}")
    assert len(container.lines()) == 1
    assert container.control.running == []
    # A killed process ends a moment later.
    eventually(lambda: is_gone(int((container.folder / "mps_server").read_text())))


def is_gone(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.parametrize(("devices", "received"), [("0", "0"), ("1", None), ("1,0", None), ("GPU-5a1c", "GPU-5a1c")])
def test_daemon_and_server_mean_the_same_device(devices: str, received: str | None, container: Container) -> None:
    container.lines(CUDA_VISIBLE_DEVICES=devices)
    assert container.server_environment[DEVICES] == devices
    assert container.control.environment.get(DEVICES) == received


def test_daemon_outlives_a_stopped_server(container: Container) -> None:
    """The commands that the server's end finds."""
    record = container.folder / "commands"
    body = f"trap 'cp {record} {record}_at_end; exit 7' TERM; kill -TERM $PPID; while :; do sleep 0.01; done"
    container.program("tritonserver", body)
    # The probe of MPS, and later drain.py.
    container.program("python3", '[ $# -lt 5 ] || kill -TERM "$5"')
    assert len(container.lines()) == 1
    assert "quit" not in (container.folder / "commands_at_end").read_text()
    assert container.control.commands[-1] == "quit"


def test_a_signal_during_the_start_of_mps_stops_the_server(container: Container) -> None:
    os.mkfifo(container.folder / "probing")
    os.mkfifo(container.folder / "proceed")
    container.program("python3", f"echo >{container.folder}/probing; read -r _ <{container.folder}/proceed")
    container.program("tritonserver", "trap 'exit 7' TERM; while :; do sleep 0.01; done")
    with container.start() as script:
        (container.folder / "probing").read_text()
        script.terminate()
        (container.folder / "proceed").write_text("\n")
        script.communicate(timeout=60)
    # 143 where the signal comes before the trap.
    assert script.returncode in (7, 143)
    assert container.control.commands[-1] == "quit"
    assert container.control.running == []


def test_compose_passes_the_setting_on() -> None:
    services: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    assert services["server"]["environment"][MPS_VARIABLE] == f"${{{MPS_VARIABLE}:-auto}}"
    assert "/tmp" in services["server"]["tmpfs"]
