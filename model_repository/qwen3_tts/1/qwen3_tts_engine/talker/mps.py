"""Whether this process shares its GPU through NVIDIA's Multi-Process Service."""

import ctypes

# CU_DEVICE_ATTRIBUTE_MPS_ENABLED of cuda.h.
MPS_ENABLED = 133


def is_active(ordinal: int) -> bool:
    """Whether contexts on the CUDA device `ordinal` are MPS clients; raises OSError without a driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, value = ctypes.c_int(), ctypes.c_int()
    found = driver.cuDeviceGet(ctypes.byref(device), ordinal) == 0
    return found and driver.cuDeviceGetAttribute(ctypes.byref(value), MPS_ENABLED, device) == 0 and bool(value.value)
