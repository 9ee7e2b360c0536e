"""The specialisations of cluster_linear.cu that are compared, by product and rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.benchmarks.products.cluster_linear import STEP, ClusterLinear
from scripts.benchmarks.products.shapes import PRODUCTS

REFERENCES = ("today", "cublas")
# (GROUPS, SPLIT), the likeliest first: 128 blocks on 132 multiprocessors, or few passes over the weights.
TILES = {
    "p.qkv": [(2, 4), (1, 2)],
    "p.out": [(1, 8), (1, 4)],
    "p.gate": [(3, 4), (2, 4), (1, 2)],
    "p.down": [(1, 8), (2, 8)],
    "p.head": [(1, 4), (2, 8)],
    "t.qkv": [(2, 4), (2, 8), (1, 4)],
    "t.out": [(2, 8), (1, 4)],
    "t.gate": [(3, 2), (3, 4), (2, 4)],
    "t.down": [(2, 8), (1, 4), (1, 8)],
    "t.head": [(3, 8), (1, 4)],
    "project": [(1, 8)],
}
WIDTHS = (16, 32, 64, 96, 128)
# Shared memory of a block. Two paired ones fit a multiprocessor: a kernel can load weights while the previous one ends.
PAIRED, ALONE = 113 * 1024, 170 * 1024
MAX_SHARED = 227 * 1024
# By GROUPS: pieces of 16 bytes of x that a thread's registers hold.
HELD = {1: 16, 2: 8, 3: 6}
MAX_DEPTH = 6
MIN_STAGES = 3
OPTIONS = {"ahead": {"AHEAD": 1}, "lag2": {"LAG": 2}}
# Slower by design; what they compute tells which part of the others is wrong.
DIAGNOSES = {"fence": {"RELAXED": 0}, "mma": {"WGMMA": 0}}


@dataclass(frozen=True)
class Item:
    """One kernel for one product; today's and cuBLAS have no form."""

    product: str
    rows: int
    kernel: str
    form: ClusterLinear | None = None


def items(products: Sequence[str], rows: Sequence[int], *, diagnose: bool) -> list[Item]:
    found = []
    for product in products:
        for count in rows:
            found += [Item(product, count, kernel) for kernel in REFERENCES]
            found += [Item(product, count, *named) for named in forms(product, count, diagnose=diagnose).items()]
    return found


def forms(product: str, rows: int, *, diagnose: bool = False) -> dict[str, ClusterLinear]:
    """By name: g2s4 has 2 GROUPS and a SPLIT of 4, + more shared memory; the others are options of the first tile."""
    found: dict[str, ClusterLinear] = {}
    for groups, split in TILES[product]:
        for suffix, shared in (("", PAIRED), ("+", ALONE)):
            tile = form(product, rows, groups, split, shared)
            if tile.shared_bytes <= MAX_SHARED and tile not in found.values():
                found[f"g{groups}s{split}{suffix}"] = tile
    options = OPTIONS | (DIAGNOSES if diagnose else {})
    return found | {name: form(product, rows, *TILES[product][0], PAIRED, **macros) for name, macros in options.items()}


def form(product: str, rows: int, groups: int, split: int, shared: int, **options: int) -> ClusterLinear:
    """The most stages whose shared memory is at most `shared`, but no fewer than three."""
    width = next(width for width in WIDTHS if rows <= width)
    steps = PRODUCTS[product].inputs // split // STEP
    copies = -(-width // (16 * groups))
    made = [
        ClusterLinear(
            **PRODUCTS[product].macros | options,
            ROWS=width,
            GROUPS=groups,
            SPLIT=split,
            STAGES=stages,
            DEPTH=max(1, min(steps, HELD[groups] // copies, MAX_DEPTH)),
            RESIDENT=resident(groups, width),
        )
        for stages in range(min(steps, MIN_STAGES), steps + 1)
    ]
    return next((one for one in reversed(made) if one.shared_bytes <= shared), made[0])


def resident(groups: int, width: int) -> int:
    """Blocks per multiprocessor for which the compiler limits registers."""
    return 1 if groups == 3 and width > 64 else {1: 3, 2: 2, 3: 2}[groups]
