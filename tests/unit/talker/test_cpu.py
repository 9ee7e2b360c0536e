"""What a CPU server says and refuses, by its cgroup and its memory."""

import logging
from pathlib import Path

import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import ConfigError, EngineConfig
from qwen3_tts_engine.startup import fit_memory
from qwen3_tts_engine.talker import cpu
from qwen3_tts_engine.talker.kv_cache import PagedCache

CPU = torch.device("cpu")


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu, "CGROUP", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        (None, 8),
        ("max 100000", 8),
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 8),
    ],
)
def test_cores_are_those_of_the_cgroup(cgroup: Path, quota: str | None, cores: int) -> None:
    if quota:
        (cgroup / "cpu.max").write_text(quota + "\n")
    assert cpu.cores() == cores


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4), (16, 12)])
def test_the_talker_has_the_cores_that_the_codec_leaves(cores: int, threads: int) -> None:
    assert cpu.talker_threads(cores) == threads


def test_one_core_is_said(tiny_checkpoint: Path, cgroup: Path, caplog: pytest.LogCaptureFixture) -> None:
    (cgroup / "cpu.max").write_text("100000 100000\n")
    with caplog.at_level(logging.WARNING):
        cpu.check(Checkpoint.open(str(tiny_checkpoint)))
    assert "one CPU core" in caplog.text


def test_an_old_cpu_is_said(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with caplog.at_level(logging.WARNING):
        cpu.check(Checkpoint.open(str(tiny_checkpoint)))
    assert "the CPU has no AVX2 (DEFAULT)" in caplog.text


def test_a_talker_that_does_not_fit_is_refused(tiny_checkpoint: Path, cgroup: Path) -> None:
    checkpoint, config = Checkpoint.open(str(tiny_checkpoint)), EngineConfig(checkpoint="any")
    (cgroup / "memory.max").write_text(str(2 << 30) + "\n")
    (cgroup / "memory.current").write_text(str(1 << 28) + "\n")
    assert fit_memory(config, checkpoint, Path(), CPU) is config
    (cgroup / "memory.current").write_text(str(7 << 28) + "\n")
    with pytest.raises(ConfigError, match=r"device: the talker takes 0\.6 GiB of memory on a CPU, 0\.2 GiB are free"):
        fit_memory(config, checkpoint, Path(), CPU)


def resident_bytes() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) << 10


def test_pages_that_no_stream_has_used_take_no_memory(tiny_checkpoint: Path) -> None:
    config = Checkpoint.open(str(tiny_checkpoint)).config.talker_config
    before = resident_bytes()
    cache = PagedCache(config, 1 << 15, 8, torch.zeros(1, 1, dtype=torch.int64), torch.float32)
    size = cache.data.numel() * cache.data.itemsize
    assert size > 256 << 20
    assert resident_bytes() - before < 16 << 20
    assert not cache.data[-1, :, -100:].any()
