"""Launches of the CUDA kernels for Hopper, in place of the Triton kernels of product.py and unit.py."""

from typing import NamedTuple

from torch import Tensor

from code2wav_step.kernels import resident_unit, skinny_product, streamed_product
from code2wav_step.kernels.cuda_form import CudaForm
from code2wav_step.kernels.resident_unit import ResidentUnit
from code2wav_step.kernels.streamed_product import StreamedProduct
from code2wav_step.weights import Product, Unit

Argument = Tensor | int | float | None


class CudaLaunch(NamedTuple):
    form: CudaForm
    blocks: int
    arguments: tuple[Argument, ...]


def product_launch(
    x: Tensor, layer: Product, residual: Tensor | None, out: Tensor | None, active: Tensor | None, processors: int
) -> CudaLaunch | None:
    """The launch of ops.Ops.product on so many multiprocessors; None where the Triton kernel is to run."""
    batch, length, channels = x.shape
    positions = length - (layer.taps - 1) * layer.dilation
    rows = batch * positions
    norm, kind = layer.norm_eps is not None, layer.activation
    skinny = skinny_product.skinny_form(rows, layer.outputs, channels, layer.taps, norm=norm, activation=kind)
    if skinny is not None:
        memory = (x, layer.weight, layer.bias, layer.alpha, layer.inverse_beta, residual, out, active)
        numbers = (rows, positions, layer.dilation, *strides(x, residual, out, active), layer.norm_eps or 0.0)
        return CudaLaunch(skinny, skinny.blocks(rows), (*memory, *numbers))
    if layer.bias is None or norm or kind != "none":
        return None
    shape = (rows, positions, layer.outputs, channels, layer.taps, layer.dilation)
    form = streamed_product.product_form(*shape, processors)
    if form is None:
        return None
    vectors = (layer.bias, layer.alpha, layer.inverse_beta, None, None, None, None)
    tensors = (x, layer.streamed, *vectors, residual, out, active)
    return _streamed(form, tensors, (rows, positions, channels, layer.outputs), layer, processors)


def unit_launch(
    x: Tensor, unit: Unit, residual: Tensor, out: Tensor | None, active: Tensor, processors: int
) -> CudaLaunch | None:
    """The launch of ops.Ops.unit; see product_launch."""
    batch, positions, channels = residual.shape
    rows, conv, pointwise = batch * positions, unit.conv, unit.pointwise
    is_resident = resident_unit.fits(channels, positions)
    form = streamed_product.unit_form(rows, positions, channels, conv.taps, conv.dilation, processors)
    if not is_resident and form is None:
        return None
    first = (conv.bias, conv.alpha, conv.inverse_beta)
    second = (pointwise.bias, pointwise.alpha, pointwise.inverse_beta, residual, out, active)
    tensors = (x, unit.streamed, *first, pointwise.streamed, *second)
    if form is not None:
        return _streamed(form, tensors, (rows, positions, channels, channels), conv, processors)
    tiles = rows // resident_unit.ROWS
    arguments = (*tensors, positions, tiles, x.stride(0), active.stride(0))
    return CudaLaunch(ResidentUnit(conv.taps, conv.dilation), min(tiles, processors), arguments)


def _streamed(
    form: StreamedProduct, tensors: tuple[Tensor | None, ...], sizes: tuple[int, ...], layer: Product, processors: int
) -> CudaLaunch:
    rows, *_, outputs = sizes
    x, *_, residual, out, active = tensors
    rings = (layer.taps, layer.dilation, form.taps_per_copy, form.x_stages, form.w_stages)
    blocks = min(streamed_product.tiles(rows, outputs, form.columns, form.groups), processors)
    return CudaLaunch(form, blocks, (*tensors, *sizes, *rings, *strides(x, residual, out, active)))


def strides(*tensors: Tensor | None) -> tuple[int, ...]:
    """Strides of batch entries; 0 for an absent tensor."""
    return tuple(0 if tensor is None else tensor.stride(0) for tensor in tensors)
