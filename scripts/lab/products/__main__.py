"""Finds the form of each product with which the layers of a tick are fastest, on a Hopper GPU.

    python -m scripts.lab.products --output products.json

README.md in this folder explains the table.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from qwen3_tts_client.records.environment import commit
from qwen3_tts_engine.talker.kernels.kernel_path import HOPPER, kernel_path
from qwen3_tts_engine.talker.kernels.skinny_linear import Block, skinny_linear
from qwen3_tts_engine.talker.kernels.tile_linear import tile_of
from qwen3_tts_engine.talker.ops.products import CudaForm, build, is_skinny
from scripts.benchmarks.common import origin, show
from scripts.lab.products.candidates import blocks, candidates
from scripts.lab.products.search import REPEATS, Choice, Found, descend, line, text
from scripts.lab.products.stack import Product, Shape, Stack, shapes

# Difference from the result of cuBLAS, relative to its norm: both round to bfloat16 many times.
MAX_DIFFERENCE = 0.05
console = Console(width=180)


def main(
    stacks: Annotated[str, typer.Option(help="predictor, talker")] = "predictor,talker",
    rows: Annotated[str, typer.Option(help="numbers of rows")] = "32,64,128,256,512",
    most: Annotated[int, typer.Option(help="tiles that are measured for each product")] = 7,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    if kernel_path(torch.cuda.get_device_capability()) != HOPPER:
        raise typer.BadParameter("tile_linear requires a Hopper GPU")
    made, counts = shapes(), [int(count) for count in rows.split(",")]
    todo = [(name, made[name], count) for name in stacks.split(",") for count in counts]
    products = ((product, count) for _, shape, count in todo for product in shape.products.values())
    forms = {form for product, count in products for form in of(product, count, most).values()}
    build(forms)
    found = [search(*one, most) for one in todo]
    show(list(map(line, found)), console)
    if output:
        output.write_text(json.dumps({**environment(), "rows": [asdict(one) for one in found]}, indent=1) + "\n")


def of(product: Product, rows: int, most: int) -> dict[Choice, CudaForm]:
    shape = product.outputs, product.inputs, rows
    skinny = is_skinny(*product.shape, rows)
    made = blocks(*shape, **product.flags) if skinny else candidates(*shape, most, **product.flags)
    return dict(made.items())


def served(product: Product, rows: int) -> Choice | None:
    if not is_skinny(*product.shape, rows):
        return tile_of(*product.shape, rows)
    form = skinny_linear(product.outputs, product.inputs, rows, hopper=True, **product.flags)
    return Block(form.WARPS, form.TILES)


def search(name: str, shape: Shape, rows: int, most: int) -> Found:
    """Starts from what is served, and takes the best tile for one product after the other, all others staying."""
    stack = Stack(shape, rows, torch.device("cuda"))
    options = {product: list(of(one, rows, most)) for product, one in shape.products.items()}
    start = {product: served(one, rows) or options[product][0] for product, one in shape.products.items()}
    tiles, changes = descend(stack.layer_us, start, options)
    cublas = dict.fromkeys(shape.products)
    check(stack, tiles, stack.result(cublas))
    by_cublas, as_served, best = (stack.layer_us(chosen, REPEATS) for chosen in (cublas, {}, tiles))
    names = {product: text(tile) for product, tile in tiles.items()}
    found = Found(name, rows, by_cublas, as_served, best, names, changes)
    console.print(found)
    return found


def check(stack: Stack, tiles: Mapping[str, Choice], expected: torch.Tensor) -> None:
    """Raises ArithmeticError unless two runs give equal bits, close to `expected`."""
    first, second = stack.result(tiles), stack.result(tiles)
    difference = float((first.double() - expected.double()).norm() / expected.double().norm())
    if not torch.equal(first, second) or not difference < MAX_DIFFERENCE:
        raise ArithmeticError(f"{tiles}: two runs differ, or differ from cuBLAS: {difference:.1e}")


def environment() -> dict[str, Any]:
    return {
        **origin("scripts.lab.products", torch.cuda.get_device_name(), commit()),
        "settings": {"weights": "random, 1.7B", "torch": torch.__version__},
    }


if __name__ == "__main__":
    typer.run(main)
