"""Installs PyTorch: the CPU build where there is no NVIDIA GPU, and nothing where a version that fits is installed.

Called by setup.sh, before anything else is installed. Prints the constraints of what is installed next.
"""

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
LEAST = (2, 11)  # as in pyproject.toml
DRIVER = Path("/proc/driver/nvidia/version")
PIP = (sys.executable, "-m", "pip", "install")


def main() -> None:
    if found := installed():
        say(f"Keeping PyTorch {found}")
        # Its pin would replace it.
        lines = CONSTRAINTS.read_text().splitlines(keepends=True)
        print("".join(line for line in lines if not line.startswith("torch==")), end="")
        return
    install()
    print(CONSTRAINTS.read_text(), end="")


def installed() -> str | None:
    """The installed version, if it fits."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    return version if tuple(map(int, re.findall(r"\d+", version)[:2])) >= LEAST else None


def install() -> None:
    has_gpu, is_cuda = DRIVER.exists() or shutil.which("nvidia-smi") is not None, offers_cuda()
    if is_cuda and not has_gpu:
        say("No NVIDIA GPU: installing PyTorch's CPU build (about 0.2 GB)")
        if install_by_uv():
            return
        say("uv cannot reach it: installing PyTorch's CUDA build (several GB), which runs on a CPU as well")
    elif is_cuda:
        say("Installing PyTorch's CUDA build (several GB)")
    else:
        say("Installing PyTorch's CPU build (about 0.2 GB)")
        if has_gpu:
            say("pip is configured for CPU builds: for the GPU, install a CUDA build first")
    subprocess.run([*PIP, "--constraint", CONSTRAINTS, "torch"], check=True, stdout=sys.stderr)


def offers_cuda() -> bool:
    """Whether pip would install a build with CUDA, by the requirements of its package."""
    report = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", "-"]
    done = subprocess.run(
        [*PIP, *report, "--constraint", CONSTRAINTS, "torch"], check=True, stdout=subprocess.PIPE, text=True
    )
    [torch] = json.loads(done.stdout)["install"]
    return any(re.match(r"(nvidia|cuda)-", name) for name in torch["metadata"].get("requires_dist", []))


def install_by_uv() -> bool:
    """uv knows where PyTorch's CPU builds are."""
    if subprocess.run([*PIP, "--quiet", "uv"], check=False, stdout=sys.stderr).returncode:
        return False
    [pin] = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch==")]
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--torch-backend", "cpu", pin]
    return not subprocess.run(command, check=False, stdout=sys.stderr).returncode


def say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
