"""Prints the requirement for the Python package of this image's TensorRT, which builds the plan.

A plan loads only in the TensorRT build that created it, so the version is that of the library that the server loads.
"""

import ctypes
import sys
from typing import Any

# The build for CUDA 13, which PyTorch uses too (requirements.txt).
PACKAGE = "tensorrt-cu13"
MAJORS = (11, 10)
PARTS = ("Major", "Minor", "Patch", "Build")


def load() -> Any:
    for major in MAJORS:
        try:
            return ctypes.CDLL(f"libnvinfer.so.{major}")
        except OSError:
            continue
    sys.exit(f"no libnvinfer.so.{' or .'.join(map(str, MAJORS))} in this image: choose another TRITON_RELEASE")


def requirement(library: Any) -> str:
    """Any post-release of the library's build."""
    version = ".".join(str(getattr(library, f"getInferLib{part}Version")()) for part in PARTS)
    return f"{PACKAGE}=={version}.*"


if __name__ == "__main__":
    print(requirement(load()))
