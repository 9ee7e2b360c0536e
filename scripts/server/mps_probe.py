"""Exits with 0 if CUDA uses MPS in this environment, else with 1 and the reason on standard error."""

import ctypes
import sys

MPS_ENABLED = 133  # CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CUDA 12.2 and later


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, enabled = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    calls = (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), 0),
        # Starts the MPS server and connects to it.
        ("cuDevicePrimaryCtxRetain", ctypes.byref(context), device),
        ("cuDeviceGetAttribute", ctypes.byref(enabled), MPS_ENABLED, device),
    )
    for function, *arguments in calls:
        if code := getattr(cuda, function)(*arguments):
            error = ctypes.c_char_p()
            cuda.cuGetErrorName(code, ctypes.byref(error))
            sys.exit(f"{function} returned {(error.value or b'an unknown error').decode()}")
    if not enabled.value:
        sys.exit("CUDA does not connect to the daemon")


if __name__ == "__main__":
    main()
