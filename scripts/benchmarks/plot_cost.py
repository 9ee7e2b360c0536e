"""Plots milliseconds per frame and time to first audio against concurrent streams, from two records."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from qwen3_tts_client.analysis.plots import STYLE

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"


def main(
    talker: Annotated[Path, typer.Option(help="of scripts.benchmarks.talker")] = BENCHMARKS / "talker-h200.json",
    serving: Annotated[Path, typer.Option(help="of scripts.benchmarks.serving")] = BENCHMARKS / "serving-h200.json",
    output: Annotated[Path, typer.Option()] = BENCHMARKS / "cost-h200.svg",
) -> None:
    frames, loads = (json.loads(path.read_text())["rows"] for path in (talker, serving))
    closed = [load for load in loads if load["load"].startswith("c=")]
    streams = [int(load["load"].removeprefix("c=")) for load in closed]
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw(left, [row["batch"] for row in frames], {"one frame": [row["ms_per_frame"] for row in frames]})
        first = {f"TTFA {name}": [load[f"ttfa_{name}_ms"] for load in closed] for name in ("p50", "p95")}
        draw(right, streams, first)
        left.set(ylabel="ms, talker and code predictor", ylim=(0, None))
        right.set(ylabel="ms, through tritonserver", yscale="log")
        FigureCanvasSVG(figure).print_svg(output, metadata={"Date": None})


def draw(axes: Axes, streams: list[int], lines: dict[str, list[Any]]) -> None:
    for label, values in lines.items():
        axes.plot(streams, values, "o-", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(streams, [str(count) for count in streams])
    axes.set_xlabel("concurrent streams")
    axes.legend()


if __name__ == "__main__":
    typer.run(main)
