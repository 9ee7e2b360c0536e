"""A CUDA stream for kernels that run beside those of a layer."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SideStream:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._read: list[Tensor] = []

    @contextmanager
    def forked(self, read: Tensor) -> Iterator[None]:
        """What is launched inside follows the current stream's kernels so far, which do not wait for it before `join`;
        until then `read` keeps its memory."""
        self._read.append(read)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)
        self._read.clear()
