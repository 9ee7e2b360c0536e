"""Time, error and determinism of one kernel for one product, on a CUDA device."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from qwen3_tts_engine.talker.kernels.cluster_linear import ClusterLinear
from qwen3_tts_engine.talker.kernels.cuda_module import KernelError, compiled
from qwen3_tts_engine.talker.kernels.skinny_linear import SkinnyLinear
from qwen3_tts_engine.talker.ops.kernel_ops import KernelOps
from qwen3_tts_engine.talker.weights import NormLinear
from scripts.benchmarks.cuda_timing import graph_us
from scripts.benchmarks.products.candidates import Item
from scripts.benchmarks.products.shapes import PRODUCTS, Product
from scripts.benchmarks.products.table import Measurement
from scripts.benchmarks.products.worker import Measure

EPS = 1e-6
ARCHITECTURE = "sm_90a"
DEVICE = torch.device("cuda")
# More than the second-level cache of a GPU, so that weights come from memory, as in a tick.
WEIGHT_BYTES = 140_000_000
LAUNCHES = 48
# Computes the product with the i-th copy of the weights.
Launch = Callable[[int], Tensor]


class CublasOps(KernelOps):
    """cuBLAS between kernels for norm and gate."""

    def _form(self, x: Tensor, weight: Tensor, **flags: int) -> None:
        return None


class SkinnyOps(KernelOps):
    def _form(self, x: Tensor, weight: Tensor, **flags: int) -> SkinnyLinear:
        return SkinnyLinear(len(weight) // (1 + flags.get("GATED", 0)), x.shape[1], 4, **flags)


class TileOps(KernelOps):
    def __init__(self, form: ClusterLinear) -> None:
        super().__init__(DEVICE)
        self._tile = form

    def _form(self, x: Tensor, weight: Tensor, **flags: int) -> ClusterLinear:
        return self._tile


@dataclass(frozen=True)
class Operands:
    """`start` is what `out` holds before the product."""

    x: Tensor
    weights: Tensor
    bias: Tensor | None
    start: Tensor
    out: Tensor


def build(form: ClusterLinear) -> None:
    """Compiles to the cache on disk."""
    with suppress(KernelError):  # reported by the measurement
        compiled(form.source, form.macros, ARCHITECTURE)


def start() -> Measure:
    """In the process that measures."""
    torch.manual_seed(0)
    return Bench().measure


class Bench:
    def __init__(self) -> None:
        self._ops = {"served": KernelOps(DEVICE), "skinny": SkinnyOps(DEVICE), "cublas": CublasOps(DEVICE)}

    def measure(self, item: Item) -> Measurement:
        try:
            return self._measured(item)
        except KernelError as error:
            torch.cuda.synchronize()  # ends this process if the context is lost
            return Measurement(failure=str(error))

    def _measured(self, item: Item) -> Measurement:
        product = PRODUCTS[item.product]
        operands = random_operands(product, item.rows)
        ops = TileOps(item.form) if item.form else self._ops[item.kernel]
        launch = launch_of(ops, product, operands)
        first, second = (run(launch, operands) for _ in range(2))
        expected = reference(product, operands)
        error = float(((first.double() - expected).norm(dim=1) / expected.norm(dim=1)).max())
        return Measurement(
            us=round(chain_us(launch, len(operands.weights)), 2),
            relative_error=error if math.isfinite(error) else None,
            same_bits=torch.equal(first, second),
        )


def random_operands(product: Product, rows: int) -> Operands:
    start = normal(rows, product.outputs)
    return Operands(
        x=normal(rows, product.inputs),
        weights=random_weights(product),
        bias=normal(product.outputs) if product.bias else None,
        start=start,
        out=start.clone(),
    )


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).bfloat16()


@lru_cache(maxsize=1)
def random_weights(product: Product) -> Tensor:
    """[copies, rows of weights, inputs]"""
    copies = max(3, math.ceil(WEIGHT_BYTES / (product.height * product.inputs * 2)))
    shape = (copies, product.height, product.inputs)
    return torch.empty(shape, device=DEVICE, dtype=torch.bfloat16).normal_(0, 0.02)


def launch_of(ops: KernelOps, product: Product, operands: Operands) -> Launch:
    x, out = operands.x, operands.out
    weights = [NormLinear(None, weight) for weight in operands.weights]

    def add(i: int) -> Tensor:
        ops.add_linear(out, x, weights[i].weight)
        return out

    if product.residual:
        return add
    if product.gated:
        return lambda i: ops.norm_gated(x, weights[i], EPS)
    if product.float_out:
        return lambda i: ops.norm_logits(x, weights[i], EPS)
    return lambda i: ops.norm_linear(x, weights[i], EPS, operands.bias)


def run(launch: Launch, operands: Operands) -> Tensor:
    operands.out.copy_(operands.start)
    return launch(0).clone()


def reference(product: Product, operands: Operands) -> Tensor:
    """In float64, of the first copy of the weights."""
    x = operands.x.double()
    if product.norm:
        x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS)
    y = x @ operands.weights[0].double().T
    if operands.bias is not None:
        y = y + operands.bias.double()
    if product.gated:
        gate, up = y.chunk(2, 1)
        y = torch.nn.functional.silu(gate) * up
    return operands.start.double() + y if product.residual else y


def chain_us(launch: Launch, copies: int) -> float:
    """Microseconds per product in a graph of launches that take turns with the copies of the weights."""
    launches = math.ceil(LAUNCHES / copies) * copies
    return graph_us(lambda: [launch(i % copies) for i in range(launches)]) / launches
