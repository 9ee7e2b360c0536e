"""What the tensor memory accelerator of Hopper knows of a matrix (cuTensorMapEncodeTiled)."""

import ctypes
from functools import cache
from typing import Any

from cuda.bindings import driver
from torch import Tensor

from qwen3_tts_engine.talker.kernels.cuda_module import KernelError

ALIGNMENT, BYTES = 128, 128
KINDS = (
    driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
    driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
    driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
    driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
)


class TensorMap(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * BYTES),)


def tensor_map(matrix: Tensor, columns: int, rows: int) -> TensorMap:
    """Of bfloat16 [height, width] whose tiles have `columns` by `rows`. Raises KernelError."""
    height, width = matrix.shape
    dtype, *layout = (kind.value for kind in KINDS)
    # The binding's own class is not aligned.
    memory = (ctypes.c_ubyte * (BYTES + ALIGNMENT))()
    made = TensorMap.from_buffer(memory, -ctypes.addressof(memory) % ALIGNMENT)
    sizes, strides = (ctypes.c_uint64 * 2)(width, height), (ctypes.c_uint64 * 1)(2 * matrix.stride(0))
    tile, steps = (ctypes.c_uint32 * 2)(columns, rows), (ctypes.c_uint32 * 2)(1, 1)
    address = ctypes.c_void_p(matrix.data_ptr())
    status = _encode()(ctypes.byref(made), dtype, 2, address, sizes, strides, tile, steps, *layout)
    if status:
        raise KernelError(f"CUDA: a tensor map of {height} x {width}, tiles of {rows} x {columns}: error {status}")
    return made


@cache
def _encode() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
