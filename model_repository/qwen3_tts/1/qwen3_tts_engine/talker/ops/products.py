"""Matrix products of a tick by the kernel that is fastest for their rows."""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from qwen3_tts_engine.talker import cublas
from qwen3_tts_engine.talker.kernels.block_linear import BlockLinear, block_linear
from qwen3_tts_engine.talker.kernels.cuda_module import CudaKernel, architecture, compiled
from qwen3_tts_engine.talker.kernels.kernel_path import HOPPER, KernelPath
from qwen3_tts_engine.talker.kernels.linear import by_rows
from qwen3_tts_engine.talker.kernels.skinny_linear import SkinnyLinear, skinny_linear
from qwen3_tts_engine.talker.kernels.tensor_map import gated_map, tensor_map
from qwen3_tts_engine.talker.kernels.tile_linear import STEP, SUM_OUTPUTS, TileLinear, tile_linear, tile_linears
from qwen3_tts_engine.talker.ops.interface import Hidden

log = logging.getLogger(__name__)

# The largest hidden size, the shorter side of a stack's weights, for which skinny_linear serves although there are
# tiles, by rows. These are slower up to 8 rows; for 9 to 16 of the predictor they are 8 % faster, but 8 streams,
# whose frames begin with 16 rows, would differ from fewer.
SKINNY_BEFORE_TILES = {8: 1 << 40, 16: 1024}
# The most rows for which skinny_linear serves where there are no tiles.
SKINNY_ROWS = 16
# The largest shorter side of a weight for which block_linear is as fast as cuBLAS and the norm or gate beside it, by
# rows (measured on an H200).
BLOCKS_BEFORE_CUBLAS = {64: 1 << 40, 256: 1024}
# Row count whose kernel serves all batches in batch-invariant mode. With 8 rows per block many rows would read the
# weights twice as often.
INVARIANT_ROWS = 16
# Threads that compile the tiles of a product while the first graphs are captured.
BUILDERS = 2
CudaForm = SkinnyLinear | TileLinear
Form = CudaForm | BlockLinear


class Products:
    def __init__(self, device: torch.device, path: KernelPath, *, batch_invariant: bool) -> None:
        self._batch_invariant, self._path = batch_invariant, path
        self._hopper = path == HOPPER
        self._device = torch.cuda.get_device_properties(device)
        self._has_cublas = not batch_invariant and cublas.is_whole(device)
        if not (batch_invariant or self._has_cublas):
            log.warning("%s; using slower kernels in its place", cublas.PARTIAL)

    def form(self, rows: int, weight: Tensor, **flags: int) -> Form | None:
        """The kernel for `rows` and a weight [outputs, inputs], or [2 · outputs, inputs] if GATED; None for cuBLAS."""
        height, inputs = weight.shape
        outputs = height // (1 + flags.get("GATED", 0))
        if self._batch_invariant:
            return skinny_linear(outputs, inputs, INVARIANT_ROWS, hopper=self._hopper, **flags)
        if (
            self._hopper
            and not is_skinny(height, inputs, rows)
            and (tile := tile_linear(outputs, inputs, rows, **flags))
        ):
            build_tiles(outputs, inputs, **flags)
            return tile
        if rows > SKINNY_ROWS:
            if self._has_cublas and min(height, inputs) > by_rows(BLOCKS_BEFORE_CUBLAS, rows, 0):
                return None
            if block := block_linear(outputs, inputs, rows, self._device, **flags):
                return block
        return skinny_linear(outputs, inputs, rows, hopper=self._hopper, **flags)

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x @ weight.T + bias."""
        form = self.form(len(x), weight, BIAS=int(bias is not None))
        if form is None:
            return torch.nn.functional.linear(x, weight, bias)
        out = x.new_empty(len(x), len(weight))
        self.run(form, x, weight, out, bias=bias)
        return out

    def add(self, residual: Hidden, x: Tensor, weight: Tensor) -> None:
        """residual += x @ weight.T, in place."""
        form = self.form(len(x), weight, RESIDUAL=1)
        if form is None:
            torch.addmm(residual.rows, x, weight.T, out=residual.rows)
        residual.squares = self.run(form, x, weight, residual.rows) if form else None

    def run(
        self,
        form: Form,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        *,
        squares: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor | None:
        """`squares` are those of `x` (Hidden); only SkinnyLinear norms without. Returns those of `out`, if any."""
        if isinstance(form, BlockLinear):
            return form.launch(x, weight, out, squares, bias, eps)
        rows, kernel = len(x), _kernel(form, self._path)
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


def is_skinny(height: int, inputs: int, rows: int) -> bool:
    """Whether skinny_linear serves a weight [height, inputs] although there are tiles."""
    return min(height, inputs) <= by_rows(SKINNY_BEFORE_TILES, rows, 0)


@cache
def build_tiles(outputs: int, inputs: int, **flags: int) -> None:
    """Builds a product's tiles in the background, once."""
    build(tile_linears(outputs, inputs, **flags), BUILDERS, wait=False)


def build(forms: Iterable[CudaForm], threads: int | None = None, *, wait: bool = True) -> None:
    """Compiles to the cache on disk; an error is reported at the kernel's first use."""
    builders = ThreadPoolExecutor(threads, thread_name_prefix="kernels")
    for form in forms:
        builders.submit(compiled, form.source, form.macros, architecture())
    builders.shutdown(wait=wait)


def norms_itself(form: Form, x: Hidden) -> bool:
    """Whether the kernel can norm `x`."""
    return isinstance(form, SkinnyLinear) or x.squares is not None


@cache
def _kernel(form: CudaForm, path: KernelPath) -> Any:
    sizes = form.threads, form.shared_bytes, form.cluster, form.carveout
    return CudaKernel(form.source, form.function, form.macros, *sizes, overlaps=path.overlaps)
