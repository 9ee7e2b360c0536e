"""Generates one frame per row of a batch. Holds all device state and no policy."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.alignment import Alignment
from qwen3_tts_engine.core.batches import Frames, Newcomer, TextFeed
from qwen3_tts_engine.core.streams import NONE
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.talker.code_predictor import CodePredictor
from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.ops.interface import Hidden, Ops, Rows, Tracking
from qwen3_tts_engine.talker.slot_state import SlotState
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.text_tracker import TextTracker


class TalkerRunner:
    """The runner (interfaces.Runner) without graphs: `launch` is synchronous."""

    lookahead = 0
    has_graphs = False
    # Whether the proof holds the runner to it.
    rows_are_independent = False

    def __init__(
        self,
        talker: Talker,
        predictor: CodePredictor,
        limits: RunnerLimits,
        pad_text_id: int,
        ops: Ops,
        alignment: Alignment | None = None,
    ) -> None:
        """`alignment` are the checkpoint's heads for word times, if it has any."""
        table = talker.code_table
        self.limits = limits
        self._device = table.device
        self._talker, self._predictor, self._ops = talker, predictor, ops
        self._pad_text_id = pad_text_id
        self._state = SlotState(talker, limits)
        pages = (limits.num_pages + 1, limits.page_size, self._state.page_table)
        self.cache = PagedCache(talker.config, *pages, table.dtype)
        positions = talker.config.num_code_groups
        self._frame_cache = FrameCache(predictor.config, limits.num_slots, positions, table.dtype, table.device)
        # Slots whose next frame is the first after a prompt: the prefill has run the talker for it.
        self._fresh = np.zeros(limits.num_slots, bool)
        # Slots with word times.
        self._tracked = np.zeros(limits.num_slots, bool)
        # SlotState.spoken of the first frame after a prompt.
        self._opened_at = np.full((limits.num_slots, 2), NONE, np.int64)
        self._tracker = None
        if alignment and alignment.layouts:
            self._tracker = TextTracker(alignment, limits.num_slots + 1, limits.max_trailing + 1, table.device)

    @torch.inference_mode()
    def build_kernels(self) -> None:
        """Run a frame of the padding slot, so that kernels that cannot be built fail now."""
        self._frame(torch.tensor([self._state.padding_slot], device=self._device))

    @torch.inference_mode()
    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        failed: list[tuple[Newcomer, Exception]] = []
        for newcomer in newcomers:
            try:
                self._state.open([newcomer])
                self._track_newcomer(newcomer)
                self._prefill(newcomer)
                self._fresh[newcomer.slot] = True
            except RuntimeError as error:
                # After an out-of-memory error other streams continue. Other CUDA errors fail all later operations.
                if self._device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError):
                    raise
                failed.append((newcomer, error))
        return failed

    @torch.inference_mode()
    def grow(self, grown: np.ndarray) -> None:
        self._state.grow(grown)

    @torch.inference_mode()
    def feed(self, feeds: list[TextFeed]) -> None:
        self._state.feed(feeds)

    @torch.inference_mode()
    def launch(self, slots: np.ndarray) -> Frames:
        fresh, tracked = self._take_fresh(slots), bool(self._tracked[slots].any())
        codes = np.empty((len(slots), self._state.num_codebooks), np.int64)
        for rows, frame in ((fresh, self._predict), (~fresh, partial(self._frame, tracked=tracked))):
            if rows.any():
                codes[rows] = frame(torch.from_numpy(slots[rows]).to(self._device)).cpu().numpy()
        spoken = self._state.spoken[torch.from_numpy(slots).to(self._device)].cpu().numpy() if tracked else None
        return Frames(codes, codes[:, 0] == self._state.eos, spoken)

    def collect(self, tick: Frames) -> Frames:
        return tick

    @property
    def eos(self) -> int:
        return self._state.eos

    @torch.inference_mode()
    def replace_input(self, slots: np.ndarray, codes: np.ndarray) -> None:
        """Feed `codes`, int64 [rows, codebooks], and the pad token next, whatever the last frame drew."""
        self._state.input[torch.from_numpy(slots).to(self._device)] = self._fed(codes)

    @torch.inference_mode()
    def distance_of_input(self, slots: np.ndarray, codes: np.ndarray) -> float:
        """How far what is fed next is from `codes` and the pad token, relative to the largest row."""
        found, expected = self._state.input[torch.from_numpy(slots).to(self._device)], self._fed(codes)
        return float((found - expected).float().norm(dim=1).max() / expected.float().norm(dim=1).max())

    def _fed(self, codes: np.ndarray) -> Tensor:
        ids = torch.from_numpy(codes).to(self._device)
        return self._talker.embed(torch.full_like(ids[:, 0], self._pad_text_id), ids)

    def _prefill(self, newcomer: Newcomer) -> None:
        """Run the prompt through the talker; the last row's output becomes the input of the next frame."""
        prompt, num_cached = newcomer.stream.prompt, newcomer.num_cached
        text, codes = (torch.from_numpy(ids).to(self._device, torch.int64) for ids in newcomer.rows(self._pad_text_id))
        rows = self._talker.embed(text, codes)
        if newcomer.vector_row is not None:
            rows[newcomer.vector_row] += self._state.vectors[newcomer.slot]
        count = len(prompt) - num_cached
        last = self._forward(newcomer.slot, rows[:count], num_cached, prompts=count)
        if len(newcomer.frames):
            # Row by row, as they were generated, for the same rounding.
            last = self._forward(newcomer.slot, rows[count:], len(prompt))
        self._state.input[newcomer.slot] = last

    def _forward(self, slot: int, rows: Tensor, start: int, *, prompts: int = 0) -> Tensor:
        """The talker's output for the last of a slot's rows, which begin at position `start`."""
        positions = torch.arange(start, start + len(rows), device=self._device)
        slots = torch.full_like(positions, slot)
        attention = self._ops.paged_attention(self.cache, slots, positions, prompts=prompts)
        return self._talker.forward(rows, attention, together=bool(prompts)).rows[-1]

    def _take_fresh(self, slots: np.ndarray) -> np.ndarray:
        """Whether each of `slots` generates its first frame now, bool [rows]."""
        fresh: np.ndarray = self._fresh[slots]
        self._fresh[slots] = False
        return fresh

    def _frame(self, slots: Tensor, *, tracked: bool = False) -> Tensor:
        """Codes int64 [rows, codebooks] of one frame per slot; its feedback becomes the slot's next input.

        `tracked`: some slots have word times.
        """
        rows = self._ops.rows(self._state, slots)
        tracking = self._track(slots, rows.positions) if tracked else None
        attention = self._ops.paged_attention(self.cache, slots, rows.positions, tracking=tracking)
        hidden = self._talker.forward(rows.hidden, attention)
        if tracking:
            tracking.finish()
        return self._complete(rows, hidden)

    def _track_newcomer(self, newcomer: Newcomer) -> None:
        self._tracked[newcomer.slot] = newcomer.stream.words is not None
        self._opened_at[newcomer.slot, 0] = newcomer.token

    def _track(self, slots: Tensor, positions: Tensor) -> Tracking:
        assert self._tracker is not None
        return self._ops.tracking(self._tracker, self._state, self.cache, slots, positions)

    def _predict(self, slots: Tensor) -> Tensor:
        """`_frame` of slots whose input is the talker's output already, as after a prompt."""
        rows = self._ops.rows(self._state, slots)
        return self._complete(rows, Hidden(rows.hidden))

    def _complete(self, rows: Rows, hidden: Hidden) -> Tensor:
        """The codes of a frame from the talker's last states [rows, H]."""
        self._predictor.predict(hidden, self._talker.logits(hidden), rows, self._frame_cache)
        rows.advance(self._talker.text_table, self._talker.code_table, self._pad_text_id)
        return rows.codes
