"""Compiles product kernels for a Hopper GPU without having one, and prints the problems of each as JSON.

A separate program, because Triton cannot compile kernels in a process that interprets them.
"""

import json
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from code2wav_step.kernels.product import product_kernel
from code2wav_step.tiles import PRODUCT_TILES, Tile

HOPPER = GPUTarget("cuda", 90, 32)
MAX_SHARED_BYTES = 227 * 1024
WIDTH, OUTPUTS = 512, 1024
POINTERS = {"x": "*fp16", "weight": "*fp16", "bias": "*fp32", "out": "*fp16"}
ABSENT = ("residual", "alpha", "inverse_beta", "active")
ALIGNED = [["tt.divisibility", 16]]


def main() -> None:
    flags = [{"NORM": norm, "GATED": gated} for norm in (False, True) for gated in (False, True)]
    tiles = [tile for tile in PRODUCT_TILES if tile.warps == 4]
    found = {f"{tile} {flag}": problems(compiled(tile, flag), tile) for tile in tiles for flag in flags}
    print(json.dumps(found))


def compiled(tile: Tile, flags: dict[str, bool]) -> Any:
    constants: dict[str, Any] = {"OUTPUTS": OUTPUTS, "CHANNELS": WIDTH, "DILATION": 1, "GELU": False, "FAST": True}
    constants |= flags | {"BLOCK_M": tile.rows, "BLOCK_N": tile.columns, "BLOCK_K": tile.depth} | dict.fromkeys(ABSENT)
    signature, values, attributes = {}, {}, {}
    for i, name in enumerate(product_kernel.arg_names):
        signature[name] = "constexpr" if name in constants else POINTERS.get(name, "fp32" if name == "eps" else "i32")
        if name in constants:
            values[i,] = constants[name]
        elif name in POINTERS or name == "width" or name.endswith("stride"):
            attributes[i,] = ALIGNED
    return triton.compile(ASTSource(product_kernel, signature, values, attributes), target=HOPPER, options=tile.launch)


def problems(kernel: Any, tile: Tile) -> list[str]:
    """A product may still read its tiles while the next iteration's are fetched, which requires another buffer."""
    code = kernel.asm["ttgir"]
    found = []
    if kernel.metadata.shared > MAX_SHARED_BYTES:
        found.append(f"{kernel.metadata.shared} bytes of shared memory")
    if "warp_group_dot" in code:
        buffers = [int(count) for count in re.findall(r"local_alloc.*?-> !ttg.memdesc<(\d+)x\d+x\d+xf16", code)]
        found += [f"{count} buffers for {tile.stages} stages" for count in buffers if count != tile.stages]
    return found


if __name__ == "__main__":
    main()
