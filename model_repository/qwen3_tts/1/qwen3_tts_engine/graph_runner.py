"""The runner on CUDA: every tick and every prefill is the replay of a graph captured at start."""

import bisect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.runner import TalkerRunner
from qwen3_tts_engine.scheduler import Frames, Newcomer
from qwen3_tts_engine.transfer import to_pinned

log = logging.getLogger(__name__)

ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PREFILL_BUCKETS = (16, 32, 64, 128, 256, 512)


class Graph:
    """A captured function of one static int64 input; `replay` fills the first rows and leaves padding in the rest."""

    def __init__(self, padding: Tensor, run: Callable[[Tensor], Tensor | None], pool: Any) -> None:
        """`padding` [rows, ...] is what an unused row holds. The function must have run once, to build its kernels."""
        self._padding = padding
        self._input = padding.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._output = run(self._input)

    def replay(self, rows: np.ndarray) -> Tensor | None:
        """The function's output, which the next replay overwrites; its rows behind len(rows) are padding."""
        count = len(rows)
        if count < len(self._input):
            self._input[count:] = self._padding[count:]
        self._input[:count].copy_(to_pinned(rows), non_blocking=True)
        self._graph.replay()
        return self._output


@dataclass(frozen=True)
class LaunchedTick:
    """Codes int64 [rows, codebooks] on their way to pinned memory, there once `done` has happened."""

    codes: Tensor
    done: torch.cuda.Event


class GraphRunner(TalkerRunner):
    """contracts.Runner: a tick's codes are read while the next tick runs."""

    lookahead = 1

    def capture(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Build all kernels and capture all graphs; nothing is captured later, under traffic."""
        rows = _up_to(ROW_BUCKETS, self.limits.num_slots)
        self._pool: Any = None
        self._frames: dict[int, Graph] = {}
        self._prefills: dict[int, Graph] = {}
        total = len(rows) + len(PREFILL_BUCKETS)
        # The largest first: the memory of its intermediate results serves the smaller ones.
        for bucket in reversed(rows):
            self._frames[bucket] = self._captured(self._padding_slots(bucket), self._frame)
            progress(len(self._frames), total)
        for bucket in reversed(PREFILL_BUCKETS):
            self._prefills[bucket] = self._captured(self._padding_rows(bucket), self._prefill_rows)
            progress(len(rows) + len(self._prefills), total)
        self._row_buckets = rows

    @torch.inference_mode()
    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        self._state.open(newcomers)
        rows = np.concatenate([self._prompt_rows(newcomer) for newcomer in newcomers])
        # Each replay stores keys before it attends, so prompts may be cut anywhere.
        for start in range(0, len(rows), PREFILL_BUCKETS[-1]):
            part = rows[start : start + PREFILL_BUCKETS[-1]]
            self._prefills[_bucket(PREFILL_BUCKETS, len(part))].replay(part)
        return []

    @torch.inference_mode()
    def launch(self, slots: np.ndarray) -> LaunchedTick:  # type: ignore[override]
        made = self._frames[_bucket(self._row_buckets, len(slots))].replay(slots)
        assert made is not None
        codes = torch.empty(len(slots), made.shape[1], dtype=made.dtype, pin_memory=True)
        codes.copy_(made[: len(slots)], non_blocking=True)
        done = torch.cuda.Event(blocking=True)
        done.record()
        return LaunchedTick(codes, done)

    def collect(self, tick: LaunchedTick) -> Frames:  # type: ignore[override]
        tick.done.synchronize()
        codes = tick.codes.numpy()
        return Frames(codes, codes[:, 0] == self._state.eos)

    def _captured(self, padding: Tensor, run: Callable[[Tensor], Tensor | None]) -> Graph:
        with torch.inference_mode():
            run(padding.clone())
            torch.cuda.synchronize()
            graph = Graph(padding, run, self._pool)
            self._pool = graph._graph.pool()
            return graph

    def _padding_slots(self, rows: int) -> Tensor:
        return torch.full((rows,), self._state.padding_slot, device=self._device)

    def _padding_rows(self, rows: int) -> Tensor:
        """Rows of prefill input: slot, position, slot that the row becomes the input of, slot whose speaker's vector
        the row adds (the padding slot has none), text id, code ids."""
        padding = torch.full((rows, 5 + self._state.num_codebooks), -1, device=self._device)
        padding[:, [0, 2, 3]] = self._state.padding_slot
        padding[:, 1] = 0
        return padding

    def _prompt_rows(self, newcomer: Newcomer) -> np.ndarray:
        prompt = newcomer.stream.prompt
        count = len(prompt)
        receiver = np.full(count, self._state.padding_slot)
        receiver[-1] = newcomer.slot
        speaker = np.full(count, self._state.padding_slot)
        if prompt.vector is not None:
            speaker[prompt.vector_row] = newcomer.slot
        columns = (np.full(count, newcomer.slot), np.arange(count), receiver, speaker, prompt.text_ids)
        rows: np.ndarray = np.concatenate([np.stack(columns, axis=1), prompt.code_ids], axis=1)
        return rows.astype(np.int64)

    def _prefill_rows(self, rows: Tensor) -> None:
        slots, positions, receivers, speakers, text_ids = rows[:, :5].T.contiguous()
        embedded = self._talker.embed(text_ids, rows[:, 5:]) + self._state.vectors[speakers]
        self._state.input.index_copy_(0, receivers, embedded)
        attention = self._ops.paged_attention(self._cache, slots, positions, prefill=True)
        self._talker.forward(embedded, attention)


def _up_to(buckets: tuple[int, ...], limit: int) -> list[int]:
    return [bucket for bucket in buckets if bucket < limit] + [limit]


def _bucket(buckets: list[int] | tuple[int, ...], rows: int) -> int:
    return buckets[bisect.bisect_left(buckets, rows)]
