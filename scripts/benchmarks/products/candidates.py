"""The tiles of cluster_linear.cu that are compared, by product and rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from qwen3_tts_engine.talker.kernels.cluster_linear import ALONE, PAIRED, WIDTHS, ClusterLinear, with_stages
from scripts.benchmarks.products.shapes import PRODUCTS

REFERENCES = ("served", "skinny", "cublas")
# (GROUPS, SPLIT): larger tiles read rows of x less often, smaller ones occupy more multiprocessors.
TILES = {
    "p.qkv": [(1, 2), (2, 4)],
    "p.out": [(1, 4), (2, 4)],
    "p.gate": [(1, 2), (2, 2), (2, 4)],
    "p.down": [(1, 4), (2, 4)],
    "p.head": [(1, 2), (1, 4), (2, 4)],
    "t.qkv": [(1, 2), (2, 4), (1, 4)],
    "t.out": [(1, 4), (1, 2), (2, 4)],
    "t.gate": [(2, 2), (1, 2), (4, 2)],
    "t.down": [(1, 4), (2, 4)],
    "t.head": [(1, 4), (1, 2)],
    "project": [(1, 4), (1, 2)],
}
MAX_SHARED = 227 * 1024


@dataclass(frozen=True)
class Item:
    """One kernel for one product; the references have no form."""

    product: str
    rows: int
    kernel: str
    form: ClusterLinear | None = None


def items(products: Sequence[str], rows: Sequence[int]) -> list[Item]:
    found = []
    for product in products:
        for count in rows:
            found += [Item(product, count, kernel) for kernel in REFERENCES]
            found += [Item(product, count, *named) for named in forms(product, count).items()]
    return found


def forms(product: str, rows: int) -> dict[str, ClusterLinear]:
    """By name: g2s4 has 2 GROUPS and a SPLIT of 4, + more shared memory, where that makes a difference."""
    shape, found = PRODUCTS[product], dict[str, ClusterLinear]()
    width = next(width for width in WIDTHS if rows <= width)
    for groups, split in TILES[product]:
        if width % (16 * groups) or width % (8 * split):
            continue
        for mark, shared in (("", PAIRED), ("+", ALONE)):
            form = with_stages(shape.outputs, shape.inputs, rows, groups, split, shared, **shape.flags)
            if form.shared_bytes <= MAX_SHARED and form not in found.values():
                found[f"g{groups}s{split}{mark}"] = form
    return found
