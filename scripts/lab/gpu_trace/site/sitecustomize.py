"""Traces the CUDA graphs of each Python process that has this folder on PYTHONPATH."""

import torch

from scripts.lab.gpu_trace.spans import TracedGraph

torch.cuda.CUDAGraph = TracedGraph  # type: ignore[misc]
