"""Stands in for the device of export.tensorrt.cuda, with host memory for the stand-in for TensorRT."""

import ctypes
from collections.abc import Callable


class Device:
    name, compute_capability = "NVIDIA H200", "9.0"


class Buffer:
    def __init__(self, device: Device, size: int) -> None:
        self.size, self._memory = size, ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self._memory)

    def write(self, data: bytes) -> None:
        ctypes.memmove(self._memory, data, len(data))

    def read(self, size: int) -> bytes:
        return self._memory.raw[:size]

    def free(self) -> None: ...


class CudaStream:
    handle = 1

    def __init__(self, device: Device) -> None: ...

    def synchronize(self) -> None: ...

    def microseconds(self, work: Callable[[], None], repeats: int) -> float:
        return 1.0
