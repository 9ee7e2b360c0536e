"""Which GPUs a server may use, and who uses them; nvidia-smi is a script."""

from pathlib import Path

import pytest

from scripts.server import gpu_lock
from scripts.server.gpu_lock import locked_gpu, visible_gpus
from scripts.server.installation import ServerError
from scripts.server.mps import DEVICES

GPUS = ["GPU-1a2b", "GPU-1a3c", "GPU-9d4e"]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with three GPUs; the folder of its nvidia-smi."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '%s\\n' " + " ".join(GPUS) + "\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(gpu_lock, "LOCKS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (None, GPUS),
        ("0", GPUS[:1]),
        ("2,0", [GPUS[2], GPUS[0]]),
        ("GPU-9d", [GPUS[2]]),
        ("GPU-1a2b, 1", GPUS[:2]),
        ("", []),
        ("-1", []),
    ],
)
def test_finds_the_gpus_that_the_environment_allows(devices: str | None, expected: list[str]) -> None:
    assert visible_gpus({} if devices is None else {DEVICES: devices}) == expected


@pytest.mark.parametrize("device", ["3", "GPU-7", "GPU-1a", "0,"])
def test_names_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(ServerError, match=rf"^{DEVICES} names '.*': this machine has the GPUs GPU-1a2b, GPU-1a3c,"):
        visible_gpus({DEVICES: device})


@pytest.mark.parametrize("body", ["exit 9", "echo 'No devices were found'"])
def test_finds_no_gpu_without_a_driver(body: str, machine: Path) -> None:
    (machine / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
    assert visible_gpus({}) == []


def test_finds_no_gpu_without_nvidia_smi(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "nvidia-smi").unlink()
    monkeypatch.setenv("PATH", str(machine))
    assert visible_gpus({DEVICES: "0"}) == []


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_refuses_a_gpu_that_one_of_two_servers_claims_alone(first: bool, second: bool) -> None:
    with (
        locked_gpu(GPUS[0], exclusively=first),
        pytest.raises(ServerError, match=f"^{GPUS[0]} is used by another server: stop it, or set {DEVICES}"),
        locked_gpu(GPUS[0], exclusively=second),
    ):
        pass
    with locked_gpu(GPUS[0], exclusively=True):
        pass


def test_servers_share_a_gpu_that_none_claims_alone() -> None:
    with locked_gpu(GPUS[0], exclusively=False), locked_gpu(GPUS[0], exclusively=False):
        pass


def test_gpus_have_locks_of_their_own() -> None:
    with locked_gpu(GPUS[0], exclusively=True), locked_gpu(GPUS[1], exclusively=True):
        pass
