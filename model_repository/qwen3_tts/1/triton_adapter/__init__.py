"""Between Triton and the engine: the only modules that import Triton's Python API."""
