"""The blocks of skinny_linear.cu and tiles of tile_linear.cu that are compared; what a tile takes at best."""

import math
from collections.abc import Iterator
from itertools import product

from qwen3_tts_engine.talker.kernels.linear import LANES
from qwen3_tts_engine.talker.kernels.skinny_linear import Block, SkinnyLinear, halves_of
from qwen3_tts_engine.talker.kernels.tile_linear import (
    MULTIPROCESSOR_BYTES,
    REGISTERS,
    SCHEDULERS,
    STEP,
    SYSTEM_BYTES,
    Tile,
    TileLinear,
    with_stages,
)

ROWS, GROUPS, SPLITS, TWINS = (16, 32, 64, 96, 128, 160, 192, 256), (1, 2, 3), (1, 2, 4, 8), 2
# Multiprocessors of one H200, and those that clusters of so many blocks can use.
MULTIPROCESSORS, CLUSTERED = 132, {1: 132, 2: 132, 4: 96, 8: 96}
# Bytes a microsecond to a multiprocessor, and from memory to all; operations a clock of one, and clocks a microsecond.
INGRESS, MEMORY, MULTIPLICATIONS, CLOCK = 110e3, 4.3e6, 2048, 1755
# Fitted to 252 measurements: a launch, a warpgroup more, an exchange of sums, a second wave of blocks; microseconds.
LAUNCH, PER_GROUP, EXCHANGE, WAVE = 3.0, 0.8, 0.8, 4.0
# Sizes of skinny_linear; a thread's registers, and the share of them for weights; blocks of a product.
WARPS, OUTPUT_TILES = (4, 8, 12, 16, 24, 32), (1, 2, 3, 4, 6, 8)
THREAD_REGISTERS, WEIGHTS_SHARE, NUM_BLOCKS = 255, 0.8, range(20, 400)


def blocks(outputs: int, inputs: int, rows: int, **flags: int) -> dict[Block, SkinnyLinear]:
    """Blocks whose registers suffice."""
    made = {}
    for warps, tiles in product(WARPS, OUTPUT_TILES):
        if inputs % (warps * LANES) or outputs % (8 * tiles):
            continue
        form = SkinnyLinear(outputs, inputs, halves_of(rows), warps, tiles, **flags)
        registers = min(THREAD_REGISTERS, SCHEDULERS * REGISTERS // form.threads)
        if form.weight_registers <= WEIGHTS_SHARE * registers and form.blocks in NUM_BLOCKS:
            made[Block(warps, tiles)] = form
    return made


def candidates(outputs: int, inputs: int, rows: int, most: int, **flags: int) -> dict[Tile, TileLinear]:
    """The `most` fastest by `bound_us`, and of those whose blocks share weights."""
    made = sorted(_all(outputs, inputs, rows, **flags), key=lambda item: bound_us(item[1], rows))
    alone, twins = ([item for item in made if (item[0].twins > 1) == shared] for shared in (False, True))
    return dict(alone[:most] + twins[:most])


def _all(outputs: int, inputs: int, rows: int, **flags: int) -> Iterator[tuple[Tile, TileLinear]]:
    height = outputs * (1 + flags.get("GATED", 0))
    for width, groups, split, paired, twins in product(ROWS, GROUPS, SPLITS, (False, True), (1, TWINS)):
        # Twins have different rows.
        if twins > 1 and (split > 1 or width >= rows):
            continue
        wide = width >= 2 * rows and width > 32
        if wide or height % (64 * groups) or inputs % (split * STEP) or width % (8 * split):
            continue
        tile = Tile(width, groups, split, paired, twins)
        form = with_stages(outputs, inputs, tile, **flags)
        if form and form.resident > paired and form.blocks(rows) <= 8 * MULTIPROCESSORS:
            yield tile, form


def bound_us(form: TileLinear, rows: int) -> float:
    blocks, inputs = form.blocks(rows), form.K // form.SPLIT
    together = max(1, MULTIPROCESSOR_BYTES // (form.shared_bytes + SYSTEM_BYTES))
    waves = math.ceil(blocks / (CLUSTERED[form.SPLIT] * together))
    busy = waves * max(1.0, min(blocks / MULTIPROCESSORS, together))
    ingress = (busy * inputs * (form.height + form.ROWS) * 2 - form.STAGES * STEP * form.height * 2) / INGRESS
    # A product of few rows of x reads the weights from shared memory more slowly than it multiplies.
    slowdown = max(1.0, (16 + form.ROWS / 4) / (form.ROWS / 2))
    multiplied = busy * form.height * form.ROWS * inputs / MULTIPLICATIONS / CLOCK * slowdown
    memory = 2 * form.N * (1 + form.GATED) * form.K / MEMORY
    extra = PER_GROUP * form.GROUPS + EXCHANGE * (form.SPLIT > 1) + WAVE * (waves - 1)
    return LAUNCH + max(ingress, multiplied, memory) + extra
