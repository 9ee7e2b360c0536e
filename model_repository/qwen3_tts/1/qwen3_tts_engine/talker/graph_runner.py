"""The CUDA runner: every tick and prefill replays graphs captured at startup."""

import bisect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.core.batches import Frames, Newcomer
from qwen3_tts_engine.pinned_memory import to_pinned
from qwen3_tts_engine.talker.runner import TalkerRunner

log = logging.getLogger(__name__)

ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
FIRST_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
PREFILL_BUCKETS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048)
# Padding a prefill of more rows costs more than another replay.
MAX_PADDED_PREFILL = 512


class TickGraph:
    """A captured function of one static int64 input; `replay` fills its first rows and pads the rest."""

    def __init__(self, padding: np.ndarray, run: Callable[[Tensor], Tensor | None], device: torch.device, pool: Any):
        """`padding` int64 [rows, ...] is the content of unused rows.

        `run` must have run once before, to build its kernels.
        """
        self._padding = padding
        self._input = torch.from_numpy(padding).to(device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._output = run(self._input)

    def replay(self, rows: np.ndarray) -> Tensor | None:
        """The function's output, valid until the next replay; rows from len(rows) on are padding."""
        padded = np.concatenate([rows, self._padding[len(rows) :]])
        self._input.copy_(to_pinned(padded), non_blocking=True)
        self._graph.replay()
        return self._output


@dataclass(frozen=True)
class LaunchedTick:
    """Codes int64 [rows, codebooks] in pinned memory, valid after the event `done`."""

    codes: Tensor
    done: torch.cuda.Event


class GraphTalkerRunner(TalkerRunner):
    """interfaces.Runner whose codes are read while the next tick runs."""

    lookahead = 1

    def capture(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Build all kernels and capture all graphs; none is captured later, under traffic."""
        self._pool: Any = None
        kinds = (
            (_up_to(ROW_BUCKETS, self.limits.num_slots), self._padding_pairs, self._mixed_frame),
            (_up_to(FIRST_BUCKETS, self.limits.num_slots), self._padding_slots, self._first_frame),
            (PREFILL_BUCKETS, self._padding_rows, self._prefill_rows),
        )
        done, total = 0, sum(len(buckets) for buckets, *_ in kinds)
        captured: list[dict[int, TickGraph]] = []
        for buckets, padding, run in kinds:
            graphs = {}
            # Largest first, so that smaller graphs reuse its memory pool.
            for bucket in reversed(buckets):
                graphs[bucket] = self._capture(padding(bucket), run)
                progress(done := done + 1, total)
            captured.append(dict(sorted(graphs.items())))
        self._frames, self._firsts, self._prefills = captured

    @torch.inference_mode()
    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        try:
            self._prefill_together(newcomers)
        except torch.OutOfMemoryError as error:
            if len(newcomers) == 1:
                return [(newcomers[0], error)]
            return [failed for newcomer in newcomers for failed in self.prefill([newcomer])]
        return []

    @torch.inference_mode()
    def launch(self, slots: np.ndarray) -> LaunchedTick:  # type: ignore[override]
        fresh = self._take_fresh(slots)
        codes = torch.empty(len(slots), self._state.num_codebooks, dtype=torch.int64, pin_memory=True)
        if fresh.all():
            replays = _replays(self._firsts, slots)
        else:
            attending = np.where(fresh, self._state.padding_slot, slots)
            replays = _replays(self._frames, np.stack([slots, attending], axis=1))
        start = 0
        for graph, part in replays:
            drawn = graph.replay(part)
            assert drawn is not None
            codes[start : start + len(part)].copy_(drawn[: len(part)], non_blocking=True)
            start += len(part)
        done = torch.cuda.Event(blocking=True)
        done.record()
        return LaunchedTick(codes, done)

    def collect(self, tick: LaunchedTick) -> Frames:  # type: ignore[override]
        tick.done.synchronize()
        codes = tick.codes.numpy()
        return Frames(codes, codes[:, 0] == self._state.eos)

    def _prefill_together(self, newcomers: list[Newcomer]) -> None:
        self._state.open(newcomers)
        rows = np.concatenate([self._prompt_rows(newcomer) for newcomer in newcomers])
        # Each replay stores keys before it attends, so prompts may be split anywhere.
        for part in _filled_parts(rows, list(self._prefills)):
            for graph, padded in _replays(self._prefills, part):
                graph.replay(padded)
        self._fresh[[newcomer.slot for newcomer in newcomers]] = True

    def _capture(self, padding: np.ndarray, run: Callable[[Tensor], Tensor | None]) -> TickGraph:
        with torch.inference_mode():
            run(torch.from_numpy(padding).to(self._device))
            torch.cuda.synchronize()
            graph = TickGraph(padding, run, self._device, self._pool)
            self._pool = graph._graph.pool()
            return graph

    def _padding_slots(self, rows: int) -> np.ndarray:
        return np.full(rows, self._state.padding_slot)

    def _padding_pairs(self, rows: int) -> np.ndarray:
        return np.full((rows, 2), self._state.padding_slot)

    def _padding_rows(self, rows: int) -> np.ndarray:
        """Rows of prefill input: slot, position, slot that receives the output, slot whose x-vector is added (none in
        the padding slot), text id, code ids."""
        padding = np.full((rows, 5 + self._state.num_codebooks), -1)
        padding[:, [0, 2, 3]] = self._state.padding_slot
        padding[:, 1] = 0
        return padding

    def _prompt_rows(self, newcomer: Newcomer) -> np.ndarray:
        prompt = newcomer.stream.prompt
        text_ids, code_ids = newcomer.rows(self._pad_text_id)
        count = len(text_ids)
        receiver = np.full(count, self._state.padding_slot)
        receiver[-1] = newcomer.slot
        speaker = np.full(count, self._state.padding_slot)
        if prompt.vector is not None:
            speaker[prompt.vector_row] = newcomer.slot
        columns = (np.full(count, newcomer.slot), np.arange(count), receiver, speaker, text_ids)
        rows: np.ndarray = np.concatenate([np.stack(columns, axis=1), code_ids], axis=1)
        return rows.astype(np.int64)

    def _mixed_frame(self, pairs: Tensor) -> Tensor:
        """`_frame` of slots of which some come directly from the prefill, which has run the talker for them.

        `pairs` int64 [rows, 2]: the slot, and the one that attends: a fresh slot's row runs the talker in the padding
        slot, so that it stores no keys, and its output is dropped.
        """
        slots, attending = pairs.T.contiguous()
        rows = self._ops.rows(self._state, slots)
        attention = self._ops.paged_attention(self._cache, attending, rows.positions, prefill=False)
        prefilled = rows.hidden.clone()
        hidden = self._talker.forward(rows.hidden, attention)
        return self._complete(rows, torch.where((slots == attending)[:, None], hidden, prefilled))

    def _prefill_rows(self, rows: Tensor) -> None:
        slots, positions, receivers, speakers, text_ids = rows[:, :5].T.contiguous()
        embedded = self._talker.embed(text_ids, rows[:, 5:]) + self._state.vectors[speakers]
        attention = self._ops.paged_attention(self._cache, slots, positions, prefill=True)
        self._state.input.index_copy_(0, receivers, self._talker.forward(embedded, attention))


def _up_to(buckets: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """Buckets for up to `limit` rows; a bucket above `limit` is replaced by `limit`."""
    smaller = tuple(bucket for bucket in buckets if bucket < limit)
    return smaller if smaller == buckets else (*smaller, limit)


def _filled_parts(rows: np.ndarray, buckets: list[int]) -> Iterator[np.ndarray]:
    """Parts that fill a bucket, as long as more rows are left than may be padded."""
    while len(rows) > MAX_PADDED_PREFILL:
        size = buckets[bisect.bisect_right(buckets, len(rows)) - 1]
        yield rows[:size]
        rows = rows[size:]
    if len(rows):
        yield rows


def _replays(graphs: dict[int, TickGraph], rows: np.ndarray) -> Iterator[tuple[TickGraph, np.ndarray]]:
    """Splits rows by the largest graph, each part with its smallest graph; `graphs` are in ascending order."""
    buckets = list(graphs)
    for start in range(0, len(rows), buckets[-1]):
        part = rows[start : start + buckets[-1]]
        yield graphs[buckets[bisect.bisect_left(buckets, len(part))]], part
