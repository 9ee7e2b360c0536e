"""The CUDA runner: every tick and prefill replays graphs captured at startup."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.core.batches import Frames, Newcomer, TextFeed
from qwen3_tts_engine.talker.ops.interface import Tracking
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.slot_state import NUM_SPOKEN_FIELDS
from qwen3_tts_engine.talker.tick_graph import Graphs, Run, TickGraph, capture_in_order, up_to

ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PREFILL_BUCKETS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048)
# The largest one for so many rows a slot, at least these: what a graph of 2048 rows takes, a small GPU lacks.
SLOT_PROMPTS, LEAST_PREFILL = 32, 512
OPEN_BUCKETS = (1, 4, 16, 64)
# Prompt rows of a lone newcomer, whose slot the same graph opens: one replay less before the GPU begins.
ENTRY_BUCKETS = (16, 32, 64, 96, 128)
# Padding a prefill of more rows costs more than another replay.
MAX_PADDED_PREFILL = 512
# Prompt rows that run in a tick, so that both read the talker's weights once. cuBLAS multiplies tiles of 128 rows: 64
# frames with 320 rows take 5.1 ms, with 448 5.5 and with 512 6.3 (one H100).
MAX_JOINT_PROMPTS, SMALL_JOINT_PROMPTS, TILE_ROWS = 512, (64, 128), 128
# Products of fewer rows have faster kernels, which prompts cannot use.
MIN_JOINT_FRAMES = 16
# The model starts only if there is memory for graphs of up to so many rows.
NEEDED_ROWS = 64

Replay = tuple[TickGraph, tuple[np.ndarray, ...]]
"""A graph and its inputs."""


@dataclass(frozen=True)
class PinnedTick:
    """Page-locked memory for a tick's results, which are there after the event `done`.

    Codes int64 [slots, codebooks], and SlotState.spoken of the slots for which the talker ran, int64 [slots, 2].
    """

    codes: Tensor
    spoken: Tensor
    done: torch.cuda.Event


@dataclass(frozen=True)
class LaunchedTick:
    """To be collected before the launch after the next one, which writes to the same memory."""

    memory: PinnedTick
    ran: np.ndarray
    """Rows for which the talker ran, bool [rows]; the others come from their prompts."""
    spoken: np.ndarray | None
    """Frames.spoken of the others; None if no stream has word times."""


class GraphTalkerRunner(TalkerRunner):
    """interfaces.Runner whose codes are read while the next tick runs.

    A tick replays two graphs: a step of the talker, which leaves its output in the slots' inputs, where a prompt leaves
    its own, and the codes of all slots. So most graphs, those of steps beside prompts, are without the predictor.
    """

    lookahead = 1
    has_graphs = True

    def capture(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Build all kernels and capture all graphs; none is captured later, under traffic.

        Without memory for a graph of many rows they run in parts, without a joint one prompts run before the frames.
        """
        self._pool: Any = None
        # Prefilled newcomers for the next launch: the slot of a lone one, and prompts.
        self._unopened, self._pending = self._state.padding_rows(0), self._padding_rows(0)
        self._memories = cycle([self._make_memory() for _ in range(self.lookahead + 1)])
        prompts, opened = self._padding_rows, self._state.padding_rows
        slots = self.limits.num_slots
        rows = up_to(ROW_BUCKETS, slots)
        self._codes = Graphs(self._predict, rows, lambda rows: [self._padding_slots(rows)], NEEDED_ROWS)
        self._steps = Graphs(self._step, rows, lambda rows: [self._padding_slots(rows)], NEEDED_ROWS)
        self._tracked_steps = self._steps
        if self._tracker:
            step = partial(self._step, tracked=True)
            self._tracked_steps = Graphs(step, rows, lambda rows: [self._padding_slots(rows)], NEEDED_ROWS)
        self._prefills = Graphs(self._prefill_rows, prefill_buckets(slots), lambda rows: [prompts(rows)], NEEDED_ROWS)
        self._openings = Graphs(self._state.load, OPEN_BUCKETS, lambda rows: [opened(rows)], NEEDED_ROWS)
        self._entries = Graphs(self._enter, ENTRY_BUCKETS, lambda rows: [opened(1), prompts(rows)], NEEDED_ROWS)
        self._joints = {
            count: Graphs(self._joint_step, joint_prompts(count), partial(self._padding_joint, count), needed=0)
            for count in reversed(rows)
            if count >= MIN_JOINT_FRAMES
        }
        alone = (self._codes, self._steps, self._prefills, self._openings, self._entries)
        tracked = (self._tracked_steps,) if self._tracker else ()
        capture_in_order([*alone, *tracked, *self._joints.values()], self._capture, progress)
        self._joints = {count: joint for count, joint in self._joints.items() if count in self._steps.captured}

    @torch.inference_mode()
    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        """Runner.prefill; the rows run in the next launch."""
        # Newcomers may have the slots and pages of streams that ended before a launch.
        self._prefill_pending()
        try:
            self._open(newcomers)
        except torch.OutOfMemoryError as error:
            if len(newcomers) == 1:
                return [(newcomers[0], error)]
            return [failed for newcomer in newcomers for failed in self.prefill([newcomer])]
        return []

    @torch.inference_mode()
    def feed(self, feeds: list[TextFeed]) -> None:
        self._open_slots()
        super().feed(feeds)

    @torch.inference_mode()
    def launch(self, slots: np.ndarray) -> LaunchedTick:  # type: ignore[override]
        memory, ran, start = next(self._memories), ~self._take_fresh(slots), 0
        spoken = self._opened_at[slots] if self._tracked[slots].any() else None
        for graph, inputs in self._steps_of(slots[ran], tracked=spoken is not None):
            found, count = graph.replay(*inputs), len(inputs[0])
            if spoken is not None:
                memory.spoken[start : start + count].copy_(found[:count], non_blocking=True)
            start += count
        start = 0
        for graph, part in self._codes.split(slots):
            memory.codes[start : start + len(part)].copy_(graph.replay(part)[: len(part)], non_blocking=True)
            start += len(part)
        memory.done.record(graph.stream)
        return LaunchedTick(memory, ran, spoken)

    def collect(self, tick: LaunchedTick) -> Frames:  # type: ignore[override]
        memory, spoken = tick.memory, tick.spoken
        memory.done.synchronize()
        codes = memory.codes[: len(tick.ran)].numpy().copy()
        if spoken is not None:
            spoken[tick.ran] = memory.spoken[: np.count_nonzero(tick.ran)].numpy()
        return Frames(codes, codes[:, 0] == self._state.eos, spoken)

    def _open(self, newcomers: list[Newcomer]) -> None:
        self._unopened = self._state.rows(newcomers)
        if len(newcomers) > 1 or len(newcomers[0].frames):
            self._open_slots()
        self._state.load_history(newcomers)
        self._pending = self._prompt_rows(newcomers)
        for newcomer in newcomers:
            self._fresh[newcomer.slot] = True
            self._track_newcomer(newcomer)

    def _open_slots(self) -> None:
        for graph, rows in self._openings.split(self._unopened):
            graph.replay(rows)
        self._unopened = self._unopened[:0]

    def _steps_of(self, running: np.ndarray, *, tracked: bool) -> list[Replay]:
        """The talker's graphs for slots that had a frame; pending prompts that do not fit them are prefilled."""
        if not len(running):
            self._prefill_pending()
            return []
        steps = self._tracked_steps if tracked else self._steps
        replays: list[Replay] = [(graph, (part,)) for graph, part in steps.split(running)]
        joint = self._joints.get(steps.bucket(len(running)))
        prompts = self._prefill_pending(joint.most if joint else 0)
        if joint and len(prompts):
            replays[0] = (joint.of(len(prompts)), (*replays[0][1], prompts))
        return replays

    def _prefill_pending(self, most: int = 0) -> np.ndarray:
        """Prefill pending prompt rows until at most `most` are left; returns those, which are not pending any more."""
        rows, self._pending = self._pending, self._pending[:0]
        if len(self._unopened) and most < len(rows) <= self._entries.most:
            self._entries.of(len(rows)).replay(self._unopened, rows)
            self._unopened = self._unopened[:0]
            return self._pending
        self._open_slots()
        # Each replay stores keys before it attends, so prompts may be split anywhere.
        for graph, part in self._prefills.fill(rows, MAX_PADDED_PREFILL):
            if len(rows) <= most:
                break
            graph.replay(part)
            rows = rows[len(part) :]
        return rows

    def _make_memory(self) -> PinnedTick:
        codes, spoken = (
            torch.empty((self.limits.num_slots, columns), dtype=torch.int64, pin_memory=True)
            for columns in (self._state.num_codebooks, NUM_SPOKEN_FIELDS)
        )
        return PinnedTick(codes, spoken, torch.cuda.Event(blocking=True))

    def _capture(self, padding: Sequence[np.ndarray], run: Run) -> TickGraph:
        with torch.inference_mode():
            graph = TickGraph(padding, run, self._device, self._pool)
            self._pool = graph.pool
            return graph

    def _padding_slots(self, rows: int) -> np.ndarray:
        return np.full(rows, self._state.padding_slot)

    def _padding_joint(self, count: int, rows: int) -> list[np.ndarray]:
        return [self._padding_slots(count), self._padding_rows(rows)]

    def _padding_rows(self, rows: int) -> np.ndarray:
        """Rows of prefill input: slot, position, slot that receives the output, slot whose x-vector is added (none in
        the padding slot), text id, code ids."""
        slot = self._state.padding_slot
        row = [slot, 0, slot, slot, *[-1] * (1 + self._state.num_codebooks)]
        return np.repeat([row], rows, axis=0)

    def _prompt_rows(self, newcomers: list[Newcomer]) -> np.ndarray:
        text_ids, code_ids = zip(*(newcomer.rows(self._pad_text_id) for newcomer in newcomers), strict=True)
        rows, start = self._padding_rows(sum(map(len, text_ids))), 0
        for newcomer, ids in zip(newcomers, text_ids, strict=True):
            own, first = rows[start : start + len(ids)], newcomer.num_cached
            own[:, 0] = own[-1, 2] = newcomer.slot
            own[:, 1] = np.arange(first, first + len(ids))
            if newcomer.vector_row is not None:
                own[newcomer.vector_row, 3] = newcomer.slot
            start += len(ids)
        # One operation for all: NumPy gives up the interpreter's lock in operations on more than 500 elements.
        rows[:, 4] = np.concatenate(text_ids)
        rows[:, 5:] = np.concatenate(code_ids)
        return rows

    def _step(self, slots: Tensor, *, tracked: bool = False) -> Tensor | None:
        """The talker's output replaces its input of slots int64 [rows].

        `tracked`: some have word times; returns SlotState.spoken of all.
        """
        positions = self._state.position.index_select(0, slots)
        tracking = self._track(slots, positions) if tracked else None
        attention = self._ops.paged_attention(self.cache, slots, positions, tracking=tracking)
        hidden = self._talker.forward(self._state.input.index_select(0, slots), attention)
        self._state.input.index_copy_(0, slots, hidden.rows)
        return self._spoken(slots, tracking)

    def _spoken(self, slots: Tensor, tracking: Tracking | None) -> Tensor | None:
        if tracking is None:
            return None
        tracking.finish()
        spoken: Tensor = self._state.spoken.index_select(0, slots)
        return spoken

    def _prefill_rows(self, prompts: Tensor) -> None:
        slots, positions, receivers, embedded = self._embed(prompts)
        attention = self._ops.paged_attention(self.cache, slots, positions, prompts=len(slots))
        self._state.input.index_copy_(0, receivers, self._talker.forward(embedded, attention).rows)

    def _enter(self, unopened: Tensor, prompts: Tensor) -> None:
        self._state.load(unopened)
        self._prefill_rows(prompts)

    def _joint_step(self, slots: Tensor, prompts: Tensor) -> Tensor | None:
        """`_prefill_rows` and `_step` in one pass through the talker.

        Where the checkpoint has word times it tracks them: beside the prompts, rows without them cost nothing.
        """
        frames = self._state.position.index_select(0, slots)
        prompt_slots, positions, receivers, embedded = self._embed(prompts)
        where = (torch.cat([slots, prompt_slots]), torch.cat([frames, positions]))
        tracking = self._track(slots, frames) if self._tracker else None
        attention = self._ops.paged_attention(self.cache, *where, prompts=len(prompts), tracking=tracking)
        rows = torch.cat([self._state.input.index_select(0, slots), embedded])
        hidden = self._talker.forward(rows, attention)
        self._state.input.index_copy_(0, torch.cat([slots, receivers]), hidden.rows)
        return self._spoken(slots, tracking)

    def _embed(self, prompts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Slots, positions and receivers of prompt rows, int64 [rows], and the talker's inputs [rows, H]."""
        slots, positions, receivers, speakers, text_ids = prompts[:, :5].T.contiguous()
        embedded = self._talker.embed(text_ids, prompts[:, 5:]) + self._state.vectors[speakers]
        return slots, positions, receivers, embedded


def count_graphs(num_slots: int, *, tracked: bool = True) -> int:
    """CUDA graphs of GraphTalkerRunner.capture: 28 for 8 slots and 101 for 256, `tracked` 32 and 115, with those of
    word times."""
    rows = up_to(ROW_BUCKETS, num_slots)
    joints = sum(len(joint_prompts(count)) for count in rows if count >= MIN_JOINT_FRAMES)
    prompts = len(prefill_buckets(num_slots)) + len(OPEN_BUCKETS) + len(ENTRY_BUCKETS)
    return (2 + tracked) * len(rows) + prompts + joints


def prefill_buckets(num_slots: int) -> tuple[int, ...]:
    """Numbers of rows of prompts alone, each with a graph."""
    most = max(LEAST_PREFILL, SLOT_PROMPTS * num_slots)
    return tuple(rows for rows in PREFILL_BUCKETS if rows <= most)


def joint_prompts(frames: int) -> list[int]:
    """Numbers of prompt rows, each with a graph beside `frames`: small ones, and those that fill tiles with the frames.

    69 graphs with 1024 slots.
    """
    filled = range(-frames % TILE_ROWS, MAX_JOINT_PROMPTS + 1, TILE_ROWS)
    return sorted({*SMALL_JOINT_PROMPTS, *(rows for rows in filled if rows >= min(SMALL_JOINT_PROMPTS))})
