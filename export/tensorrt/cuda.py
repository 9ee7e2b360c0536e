"""The part of CUDA's driver API that runs a plan, through ctypes; requires neither PyTorch nor NumPy."""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

LIBRARY = "libcuda.so.1"
COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class CudaError(RuntimeError):
    """A driver call failed, or there is no driver; the message names the call."""


class Driver:
    """The driver library, with every result checked."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError(f"no CUDA driver: {error}") from None

    def __call__(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            text = c_char_p()
            self._library.cuGetErrorString(code, byref(text))
            raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


class Device:
    """The first GPU; makes its primary context, which TensorRT uses too, current in this thread."""

    def __init__(self) -> None:
        self.call = Driver()
        self.call("cuInit", 0)
        device = c_int()
        self.call("cuDeviceGet", byref(device), 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, device)
        self.name = name.value.decode()
        major, minor = (self._attribute(device, attribute) for attribute in COMPUTE_CAPABILITY)
        self.compute_capability = f"{major}.{minor}"

    def _attribute(self, device: c_int, attribute: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), attribute, device)
        return value.value


def find_device() -> Device | None:
    """The first GPU; None on a machine without one."""
    try:
        return Device()
    except CudaError:
        return None


class Buffer:
    """Memory on the device."""

    def __init__(self, device: Device, size: int) -> None:
        self.size, self._call = size, device.call
        pointer = c_uint64()
        self._call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        self.address = pointer.value

    def write(self, data: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", c_uint64(self.address), data, c_size_t(len(data)))

    def read(self, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, c_uint64(self.address), c_size_t(size))
        return data.raw

    def free(self) -> None:
        self._call("cuMemFree_v2", c_uint64(self.address))


class CudaStream:
    def __init__(self, device: Device) -> None:
        self._call = device.call
        handle = c_void_p()
        self._call("cuStreamCreate", byref(handle), c_uint(1))  # CU_STREAM_NON_BLOCKING
        self.handle = handle.value or 0

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", c_void_p(self.handle))

    def microseconds(self, work: Callable[[], None], repeats: int) -> float:
        """Device time of one call of `work`, from events around `repeats` calls."""
        start, end = self._event(), self._event()
        self._record(start)
        for _ in range(repeats):
            work()
        self._record(end)
        self._call("cuEventSynchronize", end)
        milliseconds = c_float()
        self._call("cuEventElapsedTime", POINTER(c_float)(milliseconds), start, end)
        return milliseconds.value * 1000 / repeats

    def _event(self) -> c_void_p:
        event = c_void_p()
        self._call("cuEventCreate", byref(event), c_uint(0))
        return event

    def _record(self, event: c_void_p) -> None:
        self._call("cuEventRecord", event, c_void_p(self.handle))
