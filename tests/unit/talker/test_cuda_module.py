"""The cache of compiled kernels, with a stand-in for the compiler."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.cuda_bindings import KERNELS, imported


@pytest.fixture
def cuda_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with imported(monkeypatch, f"{KERNELS}.cuda_module") as module:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(module, "_compile", lambda *_, **__: b"cubin")
        yield module


def test_processes_with_equal_ids_fill_one_cache(
    cuda_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that share a volume do so; here threads stand for them, which write before either renames."""
    written, replace = threading.Barrier(2), Path.replace

    def replace_once_both_have_written(part: Path, target: Path) -> Path:
        written.wait(60)
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", replace_once_both_have_written)
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.map(lambda _: cuda_module.compiled("attention.cu", {"ROWS": 1}, "sm_90"), range(2))
        assert list(compiled) == [b"cubin"] * 2
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".cubin"]


def test_cached_kernel_is_not_compiled_again(cuda_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_module.compiled("attention.cu", {}, "sm_90") == b"cubin"
    monkeypatch.setattr(cuda_module, "_compile", lambda *_, **__: b"other")
    assert cuda_module.compiled("attention.cu", {}, "sm_90") == b"cubin"
    assert cuda_module.compiled("attention.cu", {}, "sm_80") == b"other"
