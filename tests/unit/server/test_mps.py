"""The MPS daemon of a server: when it is started, for whom, how it ends, and what happens without it."""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from scripts.server import mps, mps_probe, serve, tritonserver
from scripts.server.installation import ServerError
from scripts.server.mps import COST, DEVICES, LOGS, MPS_VARIABLE, PIPES, MpsDaemon
from scripts.server.supervisor import Patience, Supervisor
from tests.fakes.mps_control import LISTENS, MpsControl
from tests.subprocesses import same_imports

SOCKET_PATH_BYTES = 108
LONGEST_SOCKET = "/control_privileged"
NEVER_READY, PATIENCE = 0.5, 60.0  # s


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MpsControl:
    """A machine with a GPU, the control program and a probe that succeeds."""
    control = MpsControl(tmp_path / "programs")
    control.install()
    gpu = tmp_path / "nvidiactl"
    gpu.touch()
    monkeypatch.setattr(mps, "GPU", gpu)
    monkeypatch.setattr(mps, "DRIVER_PROGRAMS", str(tmp_path / "nowhere"))
    monkeypatch.setattr(mps, "PROBE", ("sh", "-c", f"env >{tmp_path}/probe.env"))
    monkeypatch.setenv("PATH", f"{control.folder}:{os.environ['PATH']}")
    for name in (PIPES, LOGS, DEVICES, MPS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return control


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], DEVICES: "0"} | more


def test_server_daemon_and_probe_share_a_private_folder(
    control: MpsControl, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with MpsDaemon(environment(OTHER="kept")) as given:
        folder = given[PIPES]
        assert given == environment(OTHER="kept") | {PIPES: folder, LOGS: folder}
        assert control.mode == "700"
        assert len(folder + LONGEST_SOCKET) < SOCKET_PATH_BYTES
        assert given.items() <= control.environment.items()
        assert given.items() <= control.recorded_environment("probe.env").items()
        assert control.running == control.daemons
        assert len(control.daemons) == 1
    assert control.commands[0] == "get_server_list"
    assert control.commands[-1] == "quit"
    assert control.running == []
    assert not Path(folder).exists()
    assert capfd.readouterr().err == f"mps: talker and codec share the GPU, the daemon's logs are in {folder}\n"


@pytest.mark.parametrize("given", [{MPS_VARIABLE: "off"}, {DEVICES: ""}, {DEVICES: "-1"}, {PIPES: "/own"}], ids=str)
def test_starts_no_daemon_unless_one_is_wanted(
    given: dict[str, str], control: MpsControl, capfd: pytest.CaptureFixture[str]
) -> None:
    with MpsDaemon(environment(**given)) as received:
        assert received == environment(**given)
    assert (control.daemons, control.commands, capfd.readouterr().err) == ([], [], "")


def test_starts_no_daemon_without_a_gpu(
    control: MpsControl, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "GPU", tmp_path / "none")
    with MpsDaemon(environment()) as received:
        assert received == environment()
    assert (control.daemons, capfd.readouterr().err) == ([], "")


@pytest.mark.parametrize("given", [{MPS_VARIABLE: "auto"}, {MPS_VARIABLE: ""}, {PIPES: ""}], ids=str)
def test_auto_is_the_default(given: dict[str, str], control: MpsControl) -> None:
    with MpsDaemon(environment(**given)) as received:
        assert received[PIPES]
    assert len(control.daemons) == 1


def test_rejects_an_unknown_setting() -> None:
    with pytest.raises(ServerError, match="QWEN3_TTS_MPS is 'on': it must be auto or off"):
        MpsDaemon(environment(QWEN3_TTS_MPS="on"))


def without_mps(control: MpsControl, capfd: pytest.CaptureFixture[str], **given: str) -> str:
    """The printed reason of a daemon that cannot be used; nothing of it is left, and the server starts without it."""
    with MpsDaemon(environment(**given)) as received:
        assert received == environment(**given)
        assert control.running == []
    assert not control.daemons or not Path(control.environment[PIPES]).exists()
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("mps: ")
    assert line.endswith(f"; {COST}")
    return line.removeprefix("mps: ").removesuffix(f"; {COST}")


def test_names_a_missing_control_program(control: MpsControl, capfd: pytest.CaptureFixture[str]) -> None:
    (control.folder / mps.CONTROL).unlink()
    # Without the folders in which this machine may have the program.
    reason = without_mps(control, capfd, PATH=str(control.folder))
    assert reason == "nvidia-cuda-mps-control is not on PATH"


def test_finds_the_control_program_among_those_of_the_driver(
    control: MpsControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "DRIVER_PROGRAMS", str(control.folder))
    with MpsDaemon(environment(PATH="/usr/bin:/bin")) as received:
        assert received[PIPES]


def test_prints_the_last_output_of_a_daemon_that_ends(control: MpsControl, capfd: pytest.CaptureFixture[str]) -> None:
    control.install("echo starting; echo 'no permission' >&2; exit 3")
    assert without_mps(control, capfd) == "the MPS daemon ended with exit code 3: no permission"


def test_prints_the_reason_of_a_failed_probe(
    control: MpsControl, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "PROBE", ("sh", "-c", "echo 'cuInit returned an error' >&2; exit 1"))
    assert without_mps(control, capfd) == "CUDA cannot use the MPS daemon: cuInit returned an error"
    assert control.commands[-1] == "quit"


def test_time_of_the_probe_is_limited(
    control: MpsControl, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps, "START_SECONDS", NEVER_READY)
    monkeypatch.setattr(mps, "PROBE", ("sleep", "1000"))
    assert without_mps(control, capfd) == f"MPS was not ready after {NEVER_READY:g} s"


def test_kills_a_daemon_that_does_not_listen(
    control: MpsControl, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock() -> float:
        return time.monotonic() + (mps.START_SECONDS if control.daemons else 0)

    monkeypatch.setattr(mps, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    monkeypatch.setattr(mps, "QUIT_SECONDS", 0.1)
    control.install("exec sleep 1000")
    assert without_mps(control, capfd) == f"MPS was not ready after {mps.START_SECONDS:g} s"
    assert len(control.daemons) == 1


def test_kills_a_daemon_that_does_not_quit_and_its_mps_server(
    control: MpsControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = MpsDaemon._control
    monkeypatch.setattr(MpsDaemon, "_control", lambda daemon, command, _: send(daemon, command, PATIENCE))
    monkeypatch.setattr(mps, "QUIT_SECONDS", 0.1)
    control.install(f"sleep 1000 & echo $! >{tmp_path}/server; {LISTENS.replace('exit 0', 'exec sleep 1000')}")
    with MpsDaemon(environment()):
        mps_server = psutil.Process(int((tmp_path / "server").read_text()))
    assert control.commands[-1] == "quit"
    assert control.running == []
    _, alive = psutil.wait_procs([mps_server], 30)
    assert not alive


@pytest.mark.parametrize(
    ("devices", "received"), [("0", "0"), ("1", None), ("1,0", None), ("GPU-5a1c", "GPU-5a1c"), ("MIG-0", "MIG-0")]
)
def test_daemon_and_server_mean_the_same_device(devices: str, received: str | None, control: MpsControl) -> None:
    """CUDA's documentation: the MPS server renumbers the devices that its CUDA_VISIBLE_DEVICES names."""
    with MpsDaemon(environment(CUDA_VISIBLE_DEVICES=devices)) as given:
        assert given[DEVICES] == devices
        assert control.environment.get(DEVICES) == received


def test_a_restarted_server_has_a_daemon_that_listens(control: MpsControl, tmp_path: Path) -> None:
    listens = f'echo get_server_list | {mps.CONTROL} && echo "$CUDA_MPS_PIPE_DIRECTORY" >>{tmp_path}/servers'
    first = 'kill -9 "$(cat "$CUDA_MPS_PIPE_DIRECTORY/pid")"; exit 3'
    command = ["sh", "-c", f"{listens}; [ $(wc -l <{tmp_path}/servers) -eq 2 ] || {{ {first}; }}"]
    supervisor = Supervisor(command, partial(MpsDaemon, environment()), lambda: False, Patience(3, 0.001))
    assert supervisor.run() == 0
    folders = (tmp_path / "servers").read_text().splitlines()
    assert len(set(folders)) == len(set(control.daemons)) == 2
    assert control.running == []
    assert not any(Path(folder).exists() for folder in folders)


def test_a_killed_launcher_leaves_no_daemon(control: MpsControl) -> None:
    program = (
        "import os, sys, pathlib\nfrom scripts.server import mps\n"
        f"mps.GPU, mps.PROBE = pathlib.Path({str(mps.GPU)!r}), {mps.PROBE!r}\n"
        "with mps.MpsDaemon(os.environ):\n    print('started', flush=True)\n    sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, env=same_imports()) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"started\n"
        descriptor = os.pidfd_open(control.daemons[0])
        launcher.send_signal(signal.SIGKILL)
    with os.fdopen(descriptor):
        assert select.select([descriptor], [], [], 30)[0], "the daemon runs on"
    shutil.rmtree(control.environment[PIPES])


@pytest.fixture
def served(control: MpsControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A server that records its environment; returns the lines of the record."""
    body = f"trap 'exit 7' TERM; env >{tmp_path}/unfinished; mv {tmp_path}/unfinished {tmp_path}/server.env"
    command = ["sh", "-c", f"{body}; while :; do sleep 0.01; done"]
    monkeypatch.setattr(tritonserver, "server_command", lambda *given: command)
    return command


@pytest.mark.usefixtures("served")
def test_embedded_server_runs_under_its_own_daemon(
    control: MpsControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tritonserver.TritonServer, "is_ready", lambda self: (tmp_path / "server.env").exists())
    with tritonserver.TritonServer(tmp_path) as running:
        received = control.recorded_environment("server.env")
        assert received[PIPES] == control.environment[PIPES]
        assert control.running
        assert running.stop() == 7
        assert control.running == []
    assert len(control.daemons) == 1


@pytest.mark.usefixtures("served")
def test_embedded_server_takes_the_setting_from_its_environment(control: MpsControl, tmp_path: Path) -> None:
    running = tritonserver.TritonServer(tmp_path, environment={MPS_VARIABLE: "off"})
    running.start()
    running.stop()
    assert control.daemons == []


@pytest.mark.usefixtures("served")
def test_launcher_gives_each_start_a_daemon(
    control: MpsControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[dict[str, str]] = []

    def supervise(command: list[str], environment: Any, drain: Any) -> int:
        for _ in range(2):
            with environment() as given:
                received.append(given)
        return 0

    monkeypatch.setattr(serve, "supervise", supervise)
    monkeypatch.setattr(serve, "bound_files", lambda process: None)
    context: Any = SimpleNamespace(args=[])
    with pytest.raises(SystemExit, match="0"):
        serve.main(context, tmp_path / "models", tmp_path, [])
    assert len({given[PIPES] for given in received}) == len(control.daemons) == 2
    monkeypatch.setenv(MPS_VARIABLE, "yes")
    with pytest.raises(SystemExit, match="error: QWEN3_TTS_MPS is 'yes': it must be auto or off"):
        serve.main(context, tmp_path / "models", tmp_path, [])


def driver(*, failing: str = "", enabled: int = 1) -> Any:
    """libcuda as ctypes exposes it; the function `failing` returns 805."""

    def attribute(value: Any, number: int, device: Any) -> int:
        value._obj.value = enabled if number == 133 else -1
        return 0

    def error_name(code: int, name: Any) -> int:
        name._obj.value = {805: b"CUDA_ERROR_MPS_CONNECTION_FAILED"}[code]
        return 0

    def succeeds(*arguments: Any) -> int:
        return 0

    names = ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain")
    functions = dict.fromkeys(names, succeeds) | {"cuDeviceGetAttribute": attribute, "cuGetErrorName": error_name}
    return SimpleNamespace(**{name: (lambda *_: 805) if name == failing else run for name, run in functions.items()})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"failing": "cuInit"}, "cuInit returned CUDA_ERROR_MPS_CONNECTION_FAILED"),
        ({"failing": "cuDevicePrimaryCtxRetain"}, "cuDevicePrimaryCtxRetain returned CUDA_ERROR_MPS_CONNECTION_FAILED"),
        ({"enabled": 0}, "CUDA does not connect to the daemon"),
    ],
    ids=str,
)
def test_probe_fails_with_a_reason(given: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(**given))
    with pytest.raises(SystemExit, match=reason):
        mps_probe.main()


def test_probe_succeeds_where_cuda_uses_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver())
    mps_probe.main()


def test_probe_runs_without_this_repository() -> None:
    probed = subprocess.run(mps.PROBE, cwd="/", env={}, capture_output=True, text=True)
    assert probed.returncode in (0, 1)
    assert "ModuleNotFoundError" not in probed.stderr
