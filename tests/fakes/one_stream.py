"""Stands in for talker.side_stream where there are no CUDA streams."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from qwen3_tts_engine.talker.side_stream import SideStream


class OneStream(SideStream):
    def __init__(self, *_: object) -> None:
        pass

    @contextmanager
    def forked(self, read: Tensor) -> Iterator[None]:
        yield

    def join(self) -> None:
        pass
