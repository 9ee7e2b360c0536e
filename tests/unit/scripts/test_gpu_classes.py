"""scripts.benchmarks.gpu_classes gives the measured figures for the measured GPU, and less for less."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks.gpu_classes import GPUS, H200, row

MEASURED: list[dict[str, Any]] = json.loads(Path("docs/benchmarks/general-path-h200.json").read_text())["rows"]
PAGE = Path("docs/gpu.md").read_text()


def test_the_measured_gpu_does_what_was_measured() -> None:
    [whole] = [one for one in MEASURED if (one["path"], one["share"], one["load"]) == ("auto", 100, "c=256")]
    assert row(H200, MEASURED)["listeners"] == pytest.approx(whole["audio_s_per_s"], rel=0.15)


@pytest.mark.parametrize("less", [{"gb_per_s": 600.0}, {"tflops": 200.0}, {"multiprocessors": 30}, {"gib": 16}])
def test_a_smaller_gpu_does_less(less: dict[str, float]) -> None:
    assert row(replace(H200, **less), MEASURED)["listeners"] < row(H200, MEASURED)["listeners"]  # type: ignore[arg-type]


def test_a_record_without_the_path_is_refused() -> None:
    with pytest.raises(ValueError, match="general"):
        row(GPUS[0], [one for one in MEASURED if one["path"] == "auto"])


def test_the_page_has_these_figures() -> None:
    for gpu in GPUS:
        assert f"| {' | '.join(map(str, row(gpu, MEASURED).values()))} |" in PAGE
