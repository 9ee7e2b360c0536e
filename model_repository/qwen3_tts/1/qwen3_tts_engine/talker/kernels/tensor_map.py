"""Descriptors of matrices for the tensor memory accelerator of Hopper (cuTensorMapEncodeTiled)."""

import ctypes
from functools import cache, lru_cache
from typing import Any

from cuda.bindings import driver
from torch import Tensor

from qwen3_tts_engine.talker.kernels.cuda_module import KernelError

ALIGNMENT, BYTES, ELEMENT_BYTES = 128, 128, 2
MAX_CACHED = 4096
BFLOAT16 = driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
LAYOUT = (
    driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
    driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
    driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
)
# Gates and ups that lie beside each other in a tile.
EIGHT = 8
Sizes = tuple[int, ...]


class TensorMap(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * BYTES),)


def tensor_map(matrix: Tensor, columns: int, rows: int) -> TensorMap:
    """The map of bfloat16 [height, width] whose tiles have `columns` by `rows`. Raises KernelError."""
    height, width = matrix.shape
    return _encoded(matrix.data_ptr(), (width, height), (matrix.stride(0),), (columns, rows))


def gated_map(weight: Tensor, columns: int, rows: int) -> TensorMap:
    """The map of bfloat16 [2, outputs, width], gates and ups: a tile has eight gates, their ups, the next eight...

    Raises KernelError.
    """
    height, width = weight.shape
    outputs = height // 2
    strides = (width, outputs * width, EIGHT * width)
    tile = (columns, EIGHT, 2, rows // (2 * EIGHT))
    return _encoded(weight.data_ptr(), (width, EIGHT, 2, outputs // EIGHT), strides, tile)


# Every graph that is captured has the maps of all weights again.
@lru_cache(MAX_CACHED)
def _encoded(address: int, sizes: Sizes, strides: Sizes, tile: Sizes) -> TensorMap:
    """`strides` are of all dimensions but the first, in elements."""
    # The binding's own class is not aligned.
    memory = (ctypes.c_ubyte * (BYTES + ALIGNMENT))()
    made = TensorMap.from_buffer(memory, -ctypes.addressof(memory) % ALIGNMENT)
    count, pointer = len(sizes), ctypes.c_void_p(address)
    dimensions = (ctypes.c_uint64 * count)(*sizes)
    pitches = (ctypes.c_uint64 * (count - 1))(*(ELEMENT_BYTES * stride for stride in strides))
    box, steps = (ctypes.c_uint32 * count)(*tile), (ctypes.c_uint32 * count)(*[1] * count)
    layout = (kind.value for kind in LAYOUT)
    status = _encode()(ctypes.byref(made), BFLOAT16.value, count, pointer, dimensions, pitches, box, steps, *layout)
    if status:
        raise KernelError(f"CUDA: a tensor map of {sizes}, tiles of {tile}: error {status}")
    return made


@cache
def _encode() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
