"""Which build of PyTorch the set-up installs, and when it leaves one alone."""

import importlib.metadata
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import install_torch

CUDA_BUILD = ["filelock", "nvidia-cublas<=14; platform_system == 'Linux'", "triton==3.7.0"]
CPU_BUILD = ["filelock", "sympy>=1.13"]


class Machine:
    """Records commands; pip offers a build with these requirements, and uv can be out of reach."""

    def __init__(self) -> None:
        self.offered, self.has_uv, self.commands = CPU_BUILD, True, list[str]()

    def run(self, command: list[Any], **options: Any) -> SimpleNamespace:
        line = " ".join(map(str, command[2:]))
        report = json.dumps({"install": [{"metadata": {"requires_dist": self.offered}}]})
        if "--dry-run" not in line:
            self.commands.append(line)
        return SimpleNamespace(returncode=int("uv pip" in line and not self.has_uv), stdout=report)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    machine = Machine()
    monkeypatch.setattr(subprocess, "run", machine.run)
    monkeypatch.setattr(install_torch, "installed", lambda: None)
    monkeypatch.setattr(install_torch, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    return machine


def by_pip(machine: Machine) -> None:
    assert machine.commands == [f"pip install --constraint {install_torch.CONSTRAINTS} torch"]


def test_a_cpu_build_that_pip_offers_is_taken(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    install_torch.main()
    by_pip(machine)
    captured = capsys.readouterr()
    assert captured.err == "Installing PyTorch's CPU build (about 0.2 GB)\n"
    assert captured.out == install_torch.CONSTRAINTS.read_text()


def test_a_machine_without_a_gpu_gets_no_cuda(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.offered = CUDA_BUILD
    install_torch.main()
    first, second = machine.commands
    assert first == "pip install --quiet uv"
    assert second.startswith("uv pip install --python ")
    assert "--torch-backend cpu torch==" in second
    assert "No NVIDIA GPU: installing PyTorch's CPU build (about 0.2 GB)" in capsys.readouterr().err


def test_a_machine_with_a_gpu_gets_cuda(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.offered = CUDA_BUILD
    install_torch.DRIVER.touch()
    install_torch.main()
    by_pip(machine)
    assert "Installing PyTorch's CUDA build (several GB)" in capsys.readouterr().err


def test_what_pip_offers_is_taken_where_uv_cannot_reach_the_other(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.offered, machine.has_uv = CUDA_BUILD, False
    install_torch.main()
    assert machine.commands[-1] == f"pip install --constraint {install_torch.CONSTRAINTS} torch"
    assert "uv cannot reach it" in capsys.readouterr().err


def test_a_cpu_build_on_a_machine_with_a_gpu_is_said(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    install_torch.DRIVER.touch()
    install_torch.main()
    assert "for the GPU, install a CUDA build first" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "fits"), [("2.11.0+cu130", True), ("3.0", True), ("2.10.1", False)])
def test_a_version_that_fits_stays(
    version: str, fits: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert (install_torch.installed() == version) == fits
    if fits:
        install_torch.main()
        constraints = capsys.readouterr().out
        assert "torch==" not in constraints
        assert len(constraints.splitlines()) == len(install_torch.CONSTRAINTS.read_text().splitlines()) - 1


def test_the_least_version_is_that_of_the_package() -> None:
    [engine] = [line for line in (install_torch.ROOT / "pyproject.toml").read_text().splitlines() if "torch>=" in line]
    assert '"torch>={}.{}"'.format(*install_torch.LEAST) in engine
