"""Figures of scripts.benchmarks.quickstart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmarks import quickstart

CHILD = "import time; held = bytearray(b'x') * {bytes}; time.sleep(2)"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"


def test_memory_is_that_of_all_descendants() -> None:
    size = 100 << 20
    command = [sys.executable, "-c", PARENT.format(child=CHILD.format(bytes=size))]
    with subprocess.Popen(command) as process:
        assert size < quickstart.peak_memory(process) < 2 * size


def test_downloads_are_read_from_the_log(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-2.11.0-cp311-none-linux.whl"
    wheel.write_bytes(bytes(5000))
    log = f"""Collecting numpy
  Downloading numpy-2.3.4-cp311.whl.metadata (62 kB)
Processing {wheel} (from typer)
Obtaining file:///clone
Downloading numpy-2.3.4-cp311.whl (16.9 MB)
   ━━━━━━━━━━ 16.9/16.9 MB 90.0 MB/s  0:00:00
Using cached typer-0.20.0.whl (47 kB)
"""
    assert quickstart.downloaded(log) == pytest.approx(16.9e6 + 62e3 + 5000)


def test_the_environment_is_bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(sys.prefix) / "bin")
    monkeypatch.setenv("PATH", os.pathsep.join([own, "/usr/bin"]))
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "QWEN3_TTS_CHECKPOINT"):
        monkeypatch.setenv(name, "set")
    found = quickstart.bare_environment(tmp_path)
    assert found["PATH"] == "/usr/bin"
    assert not {"VIRTUAL_ENV", "PYTHONPATH", "QWEN3_TTS_CHECKPOINT"} & set(found)
    assert found["PIP_CACHE_DIR"] == str(tmp_path)
    assert found["HOME"] == os.environ["HOME"]


def test_disk_counts_each_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "build" / "deeper").mkdir(parents=True)
    for name in ("one", "deeper/two"):
        (tmp_path / "build" / name).write_bytes(bytes(1 << 20))
    (tmp_path / "build" / "link").symlink_to("one")
    assert quickstart.disk(tmp_path) == {"environment": 0, "backends_and_log": 2 << 20, "models": 0}
