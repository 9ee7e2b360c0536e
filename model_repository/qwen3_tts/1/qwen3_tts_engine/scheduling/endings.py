"""Detects utterances that do not end by themselves. No tensors, no threads."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.scheduling.slot_table import SlotTable

# Longest period of a loop in frames. Compared are frames more than half of it apart, since speech holds some codes that
# long, and every shorter period has a multiple among those distances.
MAX_PERIOD = 24
# Share of the frames that must repeat: sampled codes differ now and then.
MIN_EQUAL = 0.9
# Frames of a stream from one check for repetition to the next.
INTERVAL = 16


# Text tokens from which on a part is long enough to judge its end.
MIN_TOKENS = 8


class EndDetector:
    def __init__(self, table: SlotTable, limits: SchedulerLimits) -> None:
        self._table = table
        self._max_silent = limits.max_silent_frames
        self._max_repeated = limits.max_repeated_frames
        self._min_token_frames = limits.min_token_frames

    def is_complete(self, slot: int) -> bool:
        """Whether a part, which has ended by itself, can have been spoken to its end."""
        stream, table = self._table.streams[slot], self._table
        assert stream is not None
        tokens, frames = stream.prompt.num_spoken, table.written[slot] - table.part_start[slot]
        return tokens < MIN_TOKENS or bool(frames >= tokens * self._min_token_frames)

    def looping(self, slots: np.ndarray) -> np.ndarray:
        """Those of `slots`, which have just got a frame, whose part repeats itself."""
        table, window = self._table, self._max_repeated
        made = table.written[slots] - table.part_start[slots]
        checked = slots[(made >= window) & (made % INTERVAL == 0)]
        if not window or not len(checked):
            return np.empty(0, np.int64)
        frames = table.written[checked, None] - window + np.arange(window)
        # Codebook 0 only: even in a loop the others vary.
        found: np.ndarray = checked[repeats(table.codes[checked[:, None], frames, 0])]
        return found

    def silent(self, slots: np.ndarray) -> np.ndarray:
        """Those of `slots`, which have just been decoded, whose part has been silent for too long after speech."""
        table = self._table
        silent = np.minimum(table.silent[slots], table.decoded[slots] - table.part_start[slots])
        is_over = table.talking[slots] & table.audible[slots] & (silent >= self._max_silent)
        found: np.ndarray = slots[is_over & (self._max_silent > 0)]
        return found


def repeats(codes: np.ndarray) -> np.ndarray:
    """Whether each row of int [rows, frames] repeats with a period of at most MAX_PERIOD frames, bool [rows]."""
    shifted = sliding_window_view(codes, codes.shape[1] - MAX_PERIOD, axis=1)
    equal = (shifted[:, : MAX_PERIOD // 2] == shifted[:, -1:]).mean(axis=2)
    found: np.ndarray = (equal >= MIN_EQUAL).any(axis=1)
    return found
