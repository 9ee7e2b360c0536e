"""Matrix products of a tick by the kernel that is fastest for their rows."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from qwen3_tts_engine.talker.kernels.cuda_module import HOPPER, CudaKernel, architecture, compiled
from qwen3_tts_engine.talker.kernels.linear import by_rows
from qwen3_tts_engine.talker.kernels.skinny_linear import SkinnyLinear, skinny_linear
from qwen3_tts_engine.talker.kernels.tensor_map import gated_map, tensor_map
from qwen3_tts_engine.talker.kernels.tile_linear import STEP, SUM_OUTPUTS, TileLinear, tile_linear, tile_linears
from qwen3_tts_engine.talker.ops.interface import Hidden

# By rows: the largest hidden size, the shorter side of a stack's weights, for which skinny_linear serves although
# there are tiles. These are slower up to 8 rows; for 9 to 16 of the predictor they are 8 % faster, but 8 streams,
# whose frames begin with 16 rows, would differ from fewer.
SKINNY_BEFORE_TILES = {8: 1 << 40, 16: 1024}
# By rows: the largest weight, in elements, for which skinny_linear beats cuBLAS (measured on an H200).
SKINNY = {16: 1 << 40, 32: 10_000_000, 64: 5_000_000}
# Whose form is everybody's in batch-invariant mode. With 8 rows per block many rows would read the weights twice as
# often.
INVARIANT_ROWS = 16
# Threads that compile the tiles of a product while the first graphs are captured.
BUILDERS = 2
Form = SkinnyLinear | TileLinear


class Products:
    def __init__(self, device: torch.device, *, batch_invariant: bool) -> None:
        self._batch_invariant = batch_invariant
        major, _ = torch.cuda.get_device_capability(device)
        self._hopper = major == HOPPER

    def form(self, rows: int, weight: Tensor, **flags: int) -> Form | None:
        """The kernel for `rows` and a weight [outputs, inputs], or [2 · outputs, inputs] if GATED; None for cuBLAS."""
        height, inputs = weight.shape
        outputs = height // (1 + flags.get("GATED", 0))
        if self._batch_invariant:
            return skinny_linear(outputs, inputs, INVARIANT_ROWS, hopper=self._hopper, **flags)
        skinny = skinny_linear(outputs, inputs, rows, hopper=self._hopper, **flags)
        if self._hopper and is_skinny(height, inputs, rows):
            return skinny
        if self._hopper and (tile := tile_linear(outputs, inputs, rows, **flags)):
            build_tiles(outputs, inputs, **flags)
            return tile
        return skinny if height * inputs <= by_rows(SKINNY, rows, 0) else None

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """x @ weight.T."""
        form = self.form(len(x), weight)
        if form is None:
            return torch.mm(x, weight.T)
        out = x.new_empty(len(x), len(weight))
        run(form, x, weight, out)
        return out

    def add(self, residual: Hidden, x: Tensor, weight: Tensor) -> None:
        """residual += x @ weight.T, in place."""
        form = self.form(len(x), weight, RESIDUAL=1)
        if form is None:
            torch.addmm(residual.rows, x, weight.T, out=residual.rows)
        residual.squares = run(form, x, weight, residual.rows) if form else None


def is_skinny(height: int, inputs: int, rows: int) -> bool:
    """Whether skinny_linear serves a weight [height, inputs] although there are tiles."""
    return min(height, inputs) <= by_rows(SKINNY_BEFORE_TILES, rows, 0)


@cache
def build_tiles(outputs: int, inputs: int, **flags: int) -> None:
    """Builds a product's tiles in the background, once."""
    build(tile_linears(outputs, inputs, **flags), BUILDERS, wait=False)


def build(forms: Iterable[Form], threads: int | None = None, *, wait: bool = True) -> None:
    """Compiles to the cache on disk; an error is reported at the kernel's first use."""
    builders = ThreadPoolExecutor(threads, thread_name_prefix="kernels")
    for form in forms:
        builders.submit(compiled, form.source, form.macros, architecture())
    builders.shutdown(wait=wait)


def norms_itself(form: Form, x: Hidden) -> bool:
    """Whether the kernel can norm `x`."""
    return isinstance(form, SkinnyLinear) or x.squares is not None


def run(
    form: Form,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    squares: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor | None:
    """`squares` are those of `x` (Hidden), which a norm of TileLinear needs. Returns those of `out`, if it has them."""
    rows, kernel = len(x), _kernel(form)
    if isinstance(form, SkinnyLinear):
        grid = (form.blocks, triton.cdiv(rows, form.rows))
        kernel(grid, x, weight, bias, out, rows, x.stride(0), out.stride(0), eps)
        return None
    maps = (
        tensor_map(x, STEP, form.ROWS),
        (gated_map if form.GATED else tensor_map)(weight, STEP, form.height // form.TWINS),
    )
    sums = x.new_empty(form.N // SUM_OUTPUTS, rows, dtype=torch.float32) if form.RESIDUAL else None
    layout = (0, 0, 0) if squares is None else (len(squares), *squares.stride())
    kernel((form.blocks(rows), 1), *maps, bias, squares, sums, out, rows, out.stride(0), *layout, eps)
    return sums


@cache
def _kernel(form: Form) -> Any:
    sizes = form.threads, form.shared_bytes, form.cluster, form.carveout
    return CudaKernel(form.source, form.function, form.macros, *sizes)
