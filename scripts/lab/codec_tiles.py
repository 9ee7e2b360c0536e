"""Block sizes for the codec's matrix products: those served, and faster ones, for the launches of a step.

    python -m scripts.lab.codec_tiles --shapes 64x4,8x16,1x4 --output tiles.json

Times each distinct launch of a step alone, in a graph of equal launches, so that small weights come from the
second-level cache. A faster tile is worth serving only if scripts.benchmarks.codec gains, with the same SNR.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from triton.runtime.errors import TritonError

from code2wav_step.buckets import BatchShape
from code2wav_step.kernel_ops import KernelOps
from code2wav_step.kernels.product import product_kernel
from code2wav_step.kernels.unit import unit_kernel
from code2wav_step.step import Step
from code2wav_step.tiles import SKINNY_ROWS, Tile, divisor
from qwen3_tts_client.records.environment import commit
from scripts.benchmarks.codec import Streams, load_weights, reference_step, shape_of
from scripts.benchmarks.common import origin, run_in_processes, show
from scripts.lab.cuda_timing import REPEATS, graph_us

# Limits of one H200.
FLOPS_PER_SECOND = 790e12
SHARED_BYTES = 220_000
LAUNCHES, FEW_LAUNCHES, FINALISTS = 20, 4, 4
# Tiles that are tried. Rows and columns of a tile depend on the number of rows of the product.
FEW_ROWS = [(16, 32), (16, 64), (32, 32), (32, 64), (64, 32), (64, 64)]
MANY_ROWS = [(64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128)]
UNIT_ROWS = (32, 64, 128, 256)
DEPTH, STAGES = 64, (3, 4)
# Sums of a thread, by warps: of 16 each thread has 128 registers.
MAX_SUMS = {4: 128, 8: 128, 16: 96}
console = Console(width=160)


@dataclass(frozen=True, eq=False)
class Launch:
    """A launch of one of the two kernels with tiles, as KernelOps made it."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def is_unit(self) -> bool:
        return self.kernel is unit_kernel

    @property
    def types(self) -> tuple[Any, ...]:
        """The arguments with tensors' types in place of tensors: what a compilation needs."""
        return tuple(one.dtype if isinstance(one, torch.Tensor) else one for one in self.arguments)

    @property
    def rows(self) -> int:
        return int(self.arguments[12 if self.is_unit else 8])

    @property
    def width(self) -> int:
        return int(self.arguments[14 if self.is_unit else 10])

    @property
    def outputs(self) -> int:
        return int(self.options["CHANNELS" if self.is_unit else "OUTPUTS"])

    @property
    def flops(self) -> float:
        if self.is_unit:
            return 2.0 * self.rows * self.outputs * (self.width + self.outputs)
        return 2.0 * self.rows * self.outputs * self.width * (2 if self.options["GATED"] else 1)

    @property
    def tile_bytes(self) -> float:
        """FP16 bytes that all programs together read into shared memory, through the second-level cache."""
        tile, matrices = self.tile, 2 if self.options.get("GATED") else 1
        product = self.width * (tile.rows + matrices * tile.columns)
        pointwise = self.outputs**2 if self.is_unit else 0
        return 2.0 * tile.programs(self.rows, self.outputs) * (product + pointwise)

    @property
    def name(self) -> str:
        if self.is_unit:
            return f"unit {self.rows}x{self.outputs} of {self.width}"
        flags = [flag.lower() for flag in ("NORM", "GATED", "GELU") if self.options[flag]]
        outputs = [name for name, tensor in zip(("residual", "out", "active"), self._outputs, strict=True) if tensor]
        return " ".join([f"{self.rows}x{self.outputs} of {self.width}", *flags, *outputs])

    @property
    def tile(self) -> Tile:
        blocks = {"BLOCK_N": self.outputs} | self.options
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
        return Tile(*(blocks[name] for name in names))

    @property
    def _outputs(self) -> tuple[bool, ...]:
        return tuple(self.arguments[place] is not None for place in (3, 6, 7))

    def with_tile(self, tile: Tile) -> "Launch":
        blocks = {"BLOCK_M": tile.rows, "BLOCK_K": tile.depth} | ({} if self.is_unit else {"BLOCK_N": tile.columns})
        return replace(self, options=self.options | blocks | tile.launch)

    def run(self) -> None:
        self.kernel[(self.tile.programs(self.rows, self.outputs),)](*self.arguments, **self.options)


class RecordingOps(KernelOps):
    """Keeps the launches of a step that have tiles."""

    launches: list[Launch]

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        super()._launch(kernel, grid, *arguments, **options)
        if kernel in (product_kernel, unit_kernel):
            self.launches.append(Launch(kernel, arguments, options))


@dataclass(frozen=True)
class Found:
    """Microseconds of a launch with the tile that is served, and with the fastest one."""

    launch: Launch
    count: int
    served_us: float
    tile: Tile
    us: float

    def row(self, shape: BatchShape) -> dict[str, Any]:
        """`of peak` is the share of the operations that the GPU could have done meanwhile, MB are tile_bytes."""
        return {
            "step": f"{shape[0]}x{shape[1]}",
            "launch": self.launch.name,
            "count": self.count,
            "served": text(self.launch.tile),
            "us": round(self.served_us, 2),
            "of peak": f"{self.launch.flops / self.served_us * 1e6 / FLOPS_PER_SECOND:.0%}",
            "MB": round(self.launch.tile_bytes / 1e6, 1),
            "best": text(self.tile),
            "its MB": round(self.launch.with_tile(self.tile).tile_bytes / 1e6, 1),
            "best us": round(self.us, 2),
            "saves us": round(self.count * (self.served_us - self.us), 1),
        }


def main(
    checkpoint: Annotated[str | None, typer.Option(help="folder or hub id; random weights by default")] = None,
    shapes: Annotated[str, typer.Option(help="batch x frames of steps")] = "64x4,8x16,1x4",
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    device = torch.device("cuda:0")
    reference = reference_step(checkpoint, device)
    weights, streams = load_weights(reference, device), Streams(reference)
    table: list[dict[str, Any]] = []
    for shape in map(shape_of, shapes.split(",")):
        ops = RecordingOps(weights.config, device)
        launches = distinct(launches_of(Step(weights, ops), ops, streams.inputs(*shape)))
        compile_all([launch for launch, _ in launches])
        found = [search(launch, count) for launch, count in launches]
        table += [one.row(shape) for one in sorted(found, key=lambda one: -one.count * one.served_us)]
        total, best = (sum(one.count * getattr(one, name) for one in found) for name in ("served_us", "us"))
        console.print(f"{shape[0]}x{shape[1]}: products {total:.0f} us, with the best tiles {best:.0f} us")
    show(table, console)
    if output:
        record = origin("scripts.lab.codec_tiles", torch.cuda.get_device_name(), commit()) | {"rows": table}
        output.write_text(json.dumps(record, indent=1) + "\n")


def launches_of(step: Step, ops: RecordingOps, inputs: Iterable[torch.Tensor]) -> list[Launch]:
    codes, state, history = inputs
    ops.launches = []
    step(codes, state, history)
    return ops.launches


def distinct(launches: list[Launch]) -> list[tuple[Launch, int]]:
    """One launch of each name, and how many a step has: those with other dilations are as fast."""
    names = [launch.name for launch in launches]
    return [(launches[names.index(name)], names.count(name)) for name in dict.fromkeys(names)]


def candidates(launch: Launch) -> list[Tile]:
    """The served tile first."""
    channels = launch.options["CHANNELS"]
    if launch.is_unit:
        shapes = [(rows, launch.outputs) for rows in UNIT_ROWS]
        # At most a whole tap per step.
        depths = {divisor(channels, DEPTH), channels}
    elif launch.rows <= SKINNY_ROWS:
        shapes, depths = FEW_ROWS, {divisor(channels, depth) for depth in (DEPTH, 2 * DEPTH, 4 * DEPTH)}
    else:
        shapes, depths = MANY_ROWS, {divisor(channels, DEPTH)}
    made = [
        Tile(rows, columns, depth, warps, stages)
        for rows, columns in shapes
        for depth in sorted(depths)
        for warps in MAX_SUMS
        for stages in STAGES
    ]
    return list(dict.fromkeys([launch.tile, *(tile for tile in made if fits(tile, launch))]))


def fits(tile: Tile, launch: Launch) -> bool:
    """Whether shared memory holds the stages, and each thread's registers its sums."""
    matrices = 2 if launch.options.get("GATED") else 1
    staged = 2 * tile.stages * tile.depth * (tile.rows + matrices * tile.columns)
    sums = matrices * tile.rows * tile.columns / (32 * tile.warps)
    fewest = 4 if launch.rows <= SKINNY_ROWS else 16
    return staged <= SHARED_BYTES and fewest <= sums <= MAX_SUMS[tile.warps]


def compile_all(launches: list[Launch]) -> None:
    """Compiles in processes, to the cache on disk: half of a compilation holds Python's lock."""
    todo = [launch.with_tile(tile) for launch in launches for tile in candidates(launch)]
    forms = [(launch.is_unit, launch.types, launch.options) for launch in todo]
    run_in_processes(compile_form, forms)


def compile_form(form: tuple[bool, tuple[Any, ...], dict[str, Any]]) -> None:
    """What cannot be compiled fails again in `search`."""
    is_unit, types, options = form
    with suppress(TritonError, RuntimeError):
        (unit_kernel if is_unit else product_kernel).warmup(*types, grid=(1,), **options)


def search(launch: Launch, count: int) -> Found:
    """Times all tiles roughly, then the best of them."""
    rough: dict[Tile, float] = {}
    for tile in candidates(launch):
        try:
            rough[tile] = launch_us(launch.with_tile(tile), FEW_LAUNCHES, repeats=1)
        except (TritonError, RuntimeError, ValueError) as error:  # too much shared memory, for example
            console.print(f"{launch.name}, {text(tile)}: {str(error).splitlines()[0]}", markup=False)
    finalists = {launch.tile, *sorted(rough, key=lambda tile: rough[tile])[:FINALISTS]}
    times = {tile: launch_us(launch.with_tile(tile), LAUNCHES) for tile in finalists}
    best = min(times, key=lambda tile: times[tile])
    return Found(launch, count, times[launch.tile], best, times[best])


def launch_us(launch: Launch, launches: int, repeats: int = REPEATS) -> float:
    def run() -> None:
        for _ in range(launches):
            launch.run()

    # A kernel's first launch loads it, which is impossible during capture.
    launch.run()
    torch.cuda.synchronize()
    return graph_us(run, repeats) / launches


def text(tile: Tile) -> str:
    return f"{tile.rows}x{tile.columns}x{tile.depth}, {tile.warps} warps, {tile.stages} stages"


if __name__ == "__main__":
    typer.run(main)
