"""Shares of the GPU's time, from spans of two processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_client.records.record import LoadRecord
from scripts.benchmarks.serving import REPOSITORY
from scripts.lab import gpu_share
from scripts.lab.gpu_share import apart, length, read, row, shares

END = 40
span = st.tuples(st.integers(0, END), st.integers(0, END)).map(sorted)
many = st.lists(span, min_size=1, max_size=12).map(lambda spans: np.array(spans, np.int64))


def ticks(spans: np.ndarray) -> set[int]:
    return {tick for start, end in spans.tolist() for tick in range(start, end)}


@given(many)
def test_spans_apart_cover_the_same_time_once(spans: np.ndarray) -> None:
    found = apart(spans)
    assert ticks(found) == ticks(spans)
    assert length(found) == len(ticks(spans))
    assert (found[1:, 0] > found[:-1, 1]).all()


@given(many, many, st.integers(0, 15), st.integers(25, END))
def test_shares_of_each_of_both_and_of_neither(talker: np.ndarray, codec: np.ndarray, start: int, stop: int) -> None:
    inside = set(range(start, stop))
    first, second = ticks(talker) & inside, ticks(codec) & inside
    expected = {"talker": first, "codec": second, "both": first & second, "neither": inside - first - second}
    found = shares(talker, codec, start, stop)
    assert found == {name: pytest.approx(len(of) / len(inside)) for name, of in expected.items()}


def test_reads_the_files_of_all_processes_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "code2wav-7").write_text("30 40\n10 20\n")
    (tmp_path / "code2wav-9").write_text("15 25\n")
    (tmp_path / "qwen3_tts-8").write_text("0 5\n")
    assert read(tmp_path, "code2wav").tolist() == [[10, 25], [30, 40]]
    (tmp_path / "idle-10").touch()
    for package in ("idle", "other"):
        with pytest.raises(ValueError, match=f"no spans of {package}"):
            read(tmp_path, package)


def test_a_row_is_of_the_measurement_window() -> None:
    load = LoadRecord(0, "closed", 64, 1000, 2000, 2500)
    spans = {"talker": np.array([[0, 1500], [1600, 3000]]), "codec": np.array([[1400, 1650]])}
    assert row(load, spans) == {"load": "c=64", "talker": "90.0%", "codec": "25.0%", "both": "15.0%", "neither": "0.0%"}


def test_a_copy_of_the_repository_begins_with_the_hook(tmp_path: Path) -> None:
    copy = gpu_share.traced_copy(REPOSITORY, tmp_path / "copy")
    program = (copy / gpu_share.ENTRIES[0]).read_text().partition("import scripts.lab.gpu_trace.hook\n")
    assert program[2] == (REPOSITORY / gpu_share.ENTRIES[0]).read_text()
    code = f"{program[0]}{program[1]}import torch\nprint(torch.cuda.CUDAGraph.__name__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "TracedGraph\n"
    assert all((copy / entry).read_text().startswith("import sys\n") for entry in gpu_share.ENTRIES)
