"""Traces the CUDA graphs of the process that imports it."""

import torch

from scripts.lab.gpu_trace.spans import TracedGraph

torch.cuda.CUDAGraph = TracedGraph  # type: ignore[misc]
