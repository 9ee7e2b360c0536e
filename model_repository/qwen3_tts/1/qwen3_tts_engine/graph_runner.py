"""The runner on CUDA: every tick and every prefill is the replay of a graph captured at start."""

import bisect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.runner import TalkerRunner
from qwen3_tts_engine.scheduler import Frames, Newcomer, TextFeed
from qwen3_tts_engine.transfer import to_pinned

log = logging.getLogger(__name__)

ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
FIRST_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
PREFILL_BUCKETS = (16, 32, 64, 128, 256, 512)


class Graph:
    """A captured function of one static int64 input; `replay` fills the first rows and leaves padding in the rest."""

    def __init__(
        self, padding: Tensor, run: Callable[[Tensor], Tensor | None], pool: Any, stream: torch.cuda.Stream
    ) -> None:
        """`padding` [rows, ...] is what an unused row holds. The function must have run once, to build its kernels.

        Graphs that share a pool or a stream of capture share memory, and may not run side by side.
        """
        self._padding = padding
        self._input = padding.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream):
            self._output = run(self._input)
        self.pool = self._graph.pool()

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
    """Codes int64 [rows, codebooks] on their way to pinned memory, there once `done` has happened.

    Row i belongs to row `order[i]` of the batch.
    """

    codes: Tensor
    order: np.ndarray
    done: torch.cuda.Event


class GraphRunner(TalkerRunner):
    """contracts.Runner: a tick's codes are read while the next tick runs, prompts are prefilled beside the tick."""

    lookahead = 1

    def capture(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Build all kernels and capture all graphs; nothing is captured later, under traffic."""
        # Prompts and their first frames have a stream, memory and a frame cache of their own.
        self._side = torch.cuda.Stream(self._device)
        self._launched = torch.cuda.Event()
        main, slots = torch.cuda.Stream(self._device), self.limits.num_slots
        firsts = _up_to(FIRST_BUCKETS, slots)
        self._first_cache = self._make_frame_cache(firsts[-1])
        kinds = (
            (_up_to(ROW_BUCKETS, slots), self._padding_slots, self._frame, main),
            (firsts, self._padding_slots, self._first_frame, self._side),
            (PREFILL_BUCKETS, self._padding_rows, self._prefill_rows, self._side),
        )
        done, total = 0, sum(len(buckets) for buckets, *_ in kinds)
        pools: dict[torch.cuda.Stream, Any] = {}
        captured: list[dict[int, Graph]] = []
        for buckets, padding, run, stream in kinds:
            graphs = {}
            # The largest first: the memory of its intermediate results serves the smaller ones.
            for bucket in reversed(buckets):
                graphs[bucket] = self._captured(padding(bucket), run, stream, pools)
                progress(done := done + 1, total)
            captured.append(dict(sorted(graphs.items())))
        self._frames, self._firsts, self._prefills = captured

    @torch.inference_mode()
    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        with torch.cuda.stream(self._side):
            # The last stream of a slot or of a page may be in a tick that is under way.
            self._side.wait_event(self._launched)
            self._state.open(newcomers)
            rows = np.concatenate([self._prompt_rows(newcomer) for newcomer in newcomers])
            # Each replay stores keys before it attends, so prompts may be cut anywhere.
            for graph, part in _replays(self._prefills, rows):
                graph.replay(part)
        self._fresh[[newcomer.slot for newcomer in newcomers]] = True
        return []

    def feed(self, feeds: list[TextFeed]) -> None:
        # A prompt that is still being loaded may be among those that get text.
        torch.cuda.current_stream(self._device).wait_stream(self._side)
        super().feed(feeds)

    @torch.inference_mode()
    def launch(self, slots: np.ndarray) -> LaunchedTick:  # type: ignore[override]
        fresh = self._take_fresh(slots)
        first, later = np.flatnonzero(fresh), np.flatnonzero(~fresh)
        codes = torch.empty(len(slots), self._state.num_codebooks, dtype=torch.int64, pin_memory=True)
        main = torch.cuda.current_stream(self._device)
        if len(first):
            with torch.cuda.stream(self._side):
                _make(self._firsts, slots[first], codes[: len(first)])
        _make(self._frames, slots[later], codes[len(first) :])
        if len(first):
            main.wait_stream(self._side)
        done = torch.cuda.Event(blocking=True)
        done.record()
        self._launched = done
        return LaunchedTick(codes, np.concatenate([first, later]), done)

    def collect(self, tick: LaunchedTick) -> Frames:  # type: ignore[override]
        tick.done.synchronize()
        codes = np.empty(tick.codes.shape, np.int64)
        codes[tick.order] = tick.codes.numpy()
        return Frames(codes, codes[:, 0] == self._state.eos)

    def _captured(
        self,
        padding: Tensor,
        run: Callable[[Tensor], Tensor | None],
        stream: torch.cuda.Stream,
        pools: dict[torch.cuda.Stream, Any],
    ) -> Graph:
        with torch.inference_mode():
            run(padding.clone())
            torch.cuda.synchronize()
            graph = Graph(padding, run, pools.get(stream), stream)
            pools.setdefault(stream, graph.pool)
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
        attention = self._ops.paged_attention(self._cache, slots, positions, prefill=True)
        self._state.input.index_copy_(0, receivers, self._talker.forward(embedded, attention))


def _up_to(buckets: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """The buckets for at most `limit` rows; the last one is of just that size where there is a larger one."""
    smaller = tuple(bucket for bucket in buckets if bucket < limit)
    return smaller if smaller == buckets else (*smaller, limit)


def _make(graphs: dict[int, Graph], slots: np.ndarray, codes: Tensor) -> None:
    """Make one frame of each slot, and bring the codes [rows, codebooks] to the host."""
    start = 0
    for graph, part in _replays(graphs, slots):
        made = graph.replay(part)
        assert made is not None
        codes[start : start + len(part)].copy_(made[: len(part)], non_blocking=True)
        start += len(part)


def _replays(graphs: dict[int, Graph], rows: np.ndarray) -> Iterator[tuple[Graph, np.ndarray]]:
    """Rows in runs of what one graph takes, and the smallest graph for each; `graphs` are in ascending order."""
    buckets = list(graphs)
    for start in range(0, len(rows), buckets[-1]):
        part = rows[start : start + buckets[-1]]
        yield graphs[buckets[bisect.bisect_left(buckets, len(part))]], part
