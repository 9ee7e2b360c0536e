"""Compares kernels for the matrix products of a tick: those that are served, others and cuBLAS, on a Hopper GPU.

    python -m scripts.benchmarks.products --output products.json

README.md in this folder explains the table.
"""

import json
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from qwen3_tts_client.records.environment import commit
from qwen3_tts_engine.talker.kernels.cluster_linear import WIDTHS, ClusterLinear
from qwen3_tts_engine.talker.kernels.cuda_module import HOPPER
from scripts.benchmarks.common import run_in_processes, show
from scripts.benchmarks.products.candidates import Item, items
from scripts.benchmarks.products.measure import build, start
from scripts.benchmarks.products.shapes import PRODUCTS
from scripts.benchmarks.products.table import Measurement, lines, problems, records
from scripts.benchmarks.products.worker import Worker

console = Console(width=180)


def main(
    products: Annotated[str, typer.Option(help="names, of shapes.py")] = ",".join(PRODUCTS),
    rows: Annotated[str, typer.Option(help="rows of x, at most 128")] = "32,64,128",
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    names, counts = products.split(","), [int(count) for count in rows.split(",")]
    check(names, counts)
    todo = items(names, counts)
    compile_all({item.form for item in todo if item.form})
    results = measured(todo)
    show(lines(results), console)
    for problem in problems(results):
        console.print(problem, markup=False)
    if output:
        output.write_text(json.dumps({**environment(), "rows": records(results)}, indent=1) + "\n")


def check(names: list[str], counts: list[int]) -> None:
    if unknown := set(names) - PRODUCTS.keys():
        raise typer.BadParameter(f"unknown products: {', '.join(sorted(unknown))}")
    if not all(1 <= count <= max(WIDTHS) for count in counts):
        raise typer.BadParameter(f"rows must be from 1 to {max(WIDTHS)}")
    if torch.cuda.get_device_capability()[0] != HOPPER:
        raise typer.BadParameter("cluster_linear requires a Hopper GPU")


def compile_all(forms: set[ClusterLinear]) -> None:
    """In parallel, to the cache on disk."""
    run_in_processes(build, forms)


def measured(todo: list[Item]) -> dict[Item, Measurement]:
    with closing(Worker(start)) as worker:
        return {item: worker.measure(item) for item in todo}


def environment() -> dict[str, Any]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "commit": commit(),
        "command": shlex.join(["python", "-m", "scripts.benchmarks.products", *sys.argv[1:]]),
        "settings": {"weights": "random, 1.7B", "torch": torch.__version__},
    }


if __name__ == "__main__":
    typer.run(main)
