"""The operations of a tick with chosen tiles of its products."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from qwen3_tts_engine.talker.ops.kernel_ops import KernelOps, linear_kernel
from scripts.benchmarks.products.candidates import Form
from scripts.benchmarks.products.tensor_map import tensor_map
from scripts.benchmarks.products.tile_linear import STEP, TileLinear, forms

# Of outputs, inputs and rows, with the flags of a product; None for KernelOps' own choice.
Choose = Callable[..., Form | None]


class TiledOps(KernelOps):
    def __init__(self, device: torch.device, choose: Choose) -> None:
        super().__init__(device)
        self._choose = choose

    def _form(self, x: Tensor, weight: Tensor, **flags: int) -> Any:
        outputs = len(weight) // (1 + flags.get("GATED", 0))
        return self._choose(outputs, weight.shape[1], len(x), **flags) or super()._form(x, weight, **flags)

    def _multiply(self, form: Any, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        if not isinstance(form, TileLinear):
            return super()._multiply(form, x, weight, out, bias, eps)
        maps = tensor_map(x, STEP, form.x_slice), tensor_map(weight, STEP, form.w_slice)
        linear_kernel(form)((form.blocks(len(x)), 1), *maps, bias, out, len(x), out.stride(0), eps)
        return out


@cache
def fastest(outputs: int, inputs: int, rows: int, **flags: int) -> TileLinear | None:
    """A Choose: the form with the lowest bound, where there is any."""
    return next(iter(forms(outputs, inputs, rows, 1, **flags)), None)
