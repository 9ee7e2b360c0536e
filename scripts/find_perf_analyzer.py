"""Prints the path of a perf_analyzer that runs here: the one on PATH, or the one in a wheel.

    perf_analyzer=$(python -m scripts.find_perf_analyzer)

The wheel tritonclient 2.51.0 is the last whose binary runs with glibc 2.35 and 2.36. Two more libraries that
it requires are in the wheel nvidia-pytriton, which the extra `embedded` installs.
"""

import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

WHEEL = "tritonclient==2.51.0"
BINARY = "data/bin/perf_analyzer"
# Name that the binary loads, and prefix of the file in nvidia_pytriton.libs.
LIBRARIES = {"libb64.so.0d": "libb64-", "libcudart.so.12": "libcudart-"}
FOLDER = Path(__file__).parents[1] / "build" / "perf_analyzer"


def main() -> None:
    installed = shutil.which("perf_analyzer")
    print(installed or unpacked(FOLDER))


def unpacked(folder: Path) -> Path:
    """The start script of the wheel's binary, which is downloaded if missing."""
    start = folder / "perf_analyzer.sh"
    if not start.is_file():
        extract(fetch(folder), folder / "perf_analyzer")
        link_libraries(folder)
        start.write_text('#!/bin/sh\nhere=$(dirname "$0")\nLD_LIBRARY_PATH="$here" exec "$here/perf_analyzer" "$@"\n')
        start.chmod(0o755)
    return start


def fetch(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--dest", str(folder), WHEEL], check=True, stdout=sys.stderr)
    return next(folder.glob("*.whl"))


def extract(wheel: Path, binary: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(BINARY))
        binary.write_bytes(archive.read(name))
    binary.chmod(0o755)
    wheel.unlink()


def link_libraries(folder: Path) -> None:
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        sys.exit("perf_analyzer requires two libraries of the wheel nvidia-pytriton: pip install '.[embedded]'")
    libraries = Path(spec.origin).parents[1] / "nvidia_pytriton.libs"
    for name, prefix in LIBRARIES.items():
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(next(libraries.glob(f"{prefix}*")))


if __name__ == "__main__":
    main()
