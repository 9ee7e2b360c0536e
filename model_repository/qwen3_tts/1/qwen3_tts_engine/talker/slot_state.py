"""Per-slot device state."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.alignment import LAYOUTS
from qwen3_tts_engine.checkpoint.configs import TalkerConfig
from qwen3_tts_engine.core.batches import Newcomer, TextFeed
from qwen3_tts_engine.core.streams import NONE, Stream
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.pinned_memory import to_device

NUM_OPTIONS = 7
NUM_TEXT_FIELDS, NUM_SPOKEN_FIELDS = 3, 2


class Embeddings(Protocol):
    """The tables and offsets of talker.Talker."""

    config: TalkerConfig
    text_table: Tensor
    code_table: Tensor
    code_offsets: Tensor


class SlotState:
    """Tensors with one row per slot; an extra slot and an extra page absorb the writes of a graph's padding rows.

    `input` [slots, H] is the talker's next input, at `position`, or after a prefill its output for the last prompt row;
    `frame` counts frames; `trailing` holds the text ids fed after each frame, `num_trailing` their count (all columns
    while the text is open: unknown ones hold the id of a zero row); `seen` marks drawn codes of codebook 0; `vectors`
    [slots, H] are the x-vectors of cloned voices, zero in the last slot. `text` [slots, 3], of slots with word times,
    are the number of the layout, from 1 on and otherwise 0, the first position of the text, and its positions, its end
    included; `spoken` [slots, 2] is as in Frames.
    """

    def __init__(self, talker: Embeddings, limits: RunnerLimits) -> None:
        table, config = talker.code_table, talker.config
        self.num_codebooks = config.num_code_groups
        self.eos = config.codec_eos_token_id
        self.code_offsets = talker.code_offsets
        self.padding_slot = limits.num_slots
        slots = limits.num_slots + 1
        self.input = torch.zeros(slots, config.hidden_size, dtype=table.dtype, device=table.device)
        self.vectors = torch.zeros_like(self.input)
        self.seen = torch.zeros(slots, config.code_predictor_config.vocab_size, dtype=torch.bool, device=table.device)
        # One matrix with the fields as columns, so that a newcomer costs one copy to the device.
        widths = [
            1,
            1,
            1,
            1,
            NUM_TEXT_FIELDS,
            NUM_SPOKEN_FIELDS,
            NUM_OPTIONS,
            limits.max_pages,
            limits.max_trailing + 1,
        ]
        self._fields = torch.zeros(slots, sum(widths), dtype=torch.int64, device=table.device)
        self._widths = widths
        columns = self._fields.split(widths, dim=1)
        self.position, self.frame, self.num_trailing, self.seed = (column.squeeze(1) for column in columns[:4])
        self.text, self.spoken, options, self.page_table, self.trailing = columns[4:]
        self.options = options.view(torch.float64)
        # Columns at which these fields start.
        self._starts = np.cumsum(widths)[3:-1].tolist()
        *_, page_table, trailing = self._starts
        self._padding_row = np.zeros((1, 1 + sum(widths)), np.int64)
        self._padding_row[:, 0] = self.padding_slot
        self._padding_row[:, 1 + page_table : 1 + trailing] = limits.num_pages
        self.load(self._to_device(self.padding_rows(1)))
        self._text_table = talker.text_table
        self._no_text = len(talker.text_table) - 1

    def open(self, newcomers: list[Newcomer]) -> None:
        """Initialise slots for prefill."""
        self.load(self._to_device(self.rows(newcomers)))
        self.load_history(newcomers)

    def rows(self, newcomers: list[Newcomer]) -> np.ndarray:
        """int64 [newcomers, fields]: the slot, then its fields."""
        rows = self.padding_rows(len(newcomers))
        for row, newcomer in zip(rows, newcomers, strict=True):
            row[0] = newcomer.slot
            self._fill(row[1:], newcomer)
        return rows

    def padding_rows(self, count: int) -> np.ndarray:
        """Rows of the padding slot."""
        return self._padding_row.repeat(count, axis=0)

    def load(self, rows: Tensor) -> None:
        """Set all fields of slots, from `rows` on the device."""
        slots = rows[:, 0]
        self._fields.index_copy_(0, slots, rows[:, 1:])
        # Assigning a constant would synchronise with the device.
        self.seen.index_fill_(0, slots, False)

    def load_history(self, newcomers: list[Newcomer]) -> None:
        """Set what only some newcomers have: frames made before, and x-vectors."""
        for newcomer in newcomers:
            if len(newcomer.frames):
                drawn = self._to_device(newcomer.frames[:, 0].astype(np.int64))
                self.seen[newcomer.slot].index_fill_(0, drawn, True)
            if (vector := newcomer.stream.prompt.vector) is not None:
                self.vectors[newcomer.slot] = self._to_device(vector)

    def grow(self, grown: np.ndarray) -> None:
        """Assign pages to slots, int64 [pages, 3]: slot, index in its page table, page."""
        slots, places, pages = self._to_device(grown).T
        self.page_table[slots, places] = pages

    def feed(self, feeds: list[TextFeed]) -> None:
        """Store streamed text of later frames; adds late text to the pending input."""
        ids = [(feed.slot, feed.start + i, text_id) for feed in feeds for i, text_id in enumerate(feed.ids)]
        slots, columns, text_ids = self._to_device(np.array(ids)).T
        self.trailing[slots, columns] = text_ids
        width = self.trailing.shape[1]
        fields = [
            (f.slot, width if f.is_open else f.start + len(f.ids), f.num_spoken + 1, f.ids[0] if f.late else -1)
            for f in feeds
        ]
        slots, counts, num_text, late = self._to_device(np.array(fields)).T
        self.num_trailing[slots] = counts
        self.text[slots, 2] = num_text
        self.input[slots] += self._text_table[late]

    def _fill(self, fields: np.ndarray, newcomer: Newcomer) -> None:
        stream, pages, made = newcomer.stream, newcomer.pages, len(newcomer.frames)
        prompt = stream.prompt
        text, spoken, options, page_table, trailing = self._starts
        fields[:4] = len(prompt) + made - 1, made, len(prompt.trailing), stream.seed
        if stream.words:
            fields[text:spoken] = 1 + LAYOUTS.index(prompt.layout), prompt.text_at, prompt.num_spoken + 1
        fields[spoken:options] = newcomer.token, NONE
        fields[options:page_table] = _options(stream).view(np.int64)
        fields[page_table : page_table + len(pages)] = pages
        if prompt.is_open:
            fields[2] = self._widths[-1]
            fields[trailing:] = self._no_text
        fields[trailing : trailing + len(prompt.trailing)] = prompt.trailing

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return to_device(array, self._fields.device)


def _options(stream: Stream) -> np.ndarray:
    """Sampling parameters, float64: temperature, top_k, top_p, penalty; then the predictor's first three."""
    s = stream.sampling
    others = (s.predictor_temperature, s.predictor_top_k, s.predictor_top_p)
    return np.array([s.temperature, s.top_k, s.top_p, s.repetition_penalty, *others], np.float64)
