"""How many streams this machine speaks in real time, learnt from its own ticks and codec calls."""

import math

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.codec.contract import MAX_BATCH

# Weight of a sample after each newer one. How busy the machine is counts over about 50 samples, some seconds' worth;
# what a larger batch costs beside a small one is a property of the machine and kept for 500 changes of size.
PACE_MEMORY = 0.98
SHAPE_MEMORY = 0.998
# A sample counts at most this many times what was expected: a hiccup is not the machine's pace.
LARGEST_SURPRISE = 3.0
# Of a first guess beside the samples: enough to decide while all of these have the same size, not more.
GUESS_WEIGHT = 0.5

# Text tokens and frames of ordinary speech, until others are measured (as COMMON_POSITIONS in talker/loader.py).
USUAL_SPEECH = (100, 375)
SPEECH_MEMORY = 0.98

# Prompts to prefill, the sending and accidents; and how often every stream may have to get a frame before a listener's
# turn comes: with its own, and with a tick and a codec call that had just begun. Tested with 256 streams on one H200.
URGENT_LEAD, URGENT_FRAMES = 0.02, 3
# A slower machine has no use for being warned so early.
SLOWEST_FRAME = 0.02


def urgent_lead(frame_seconds: float) -> float:
    """A listener with less than these seconds of audio is next, where a frame of every stream takes so long."""
    return URGENT_LEAD + URGENT_FRAMES * min(frame_seconds, SLOWEST_FRAME)


class LineFit:
    """Cost as fixed + each * size, neither of them negative, by least squares over what was seen lately."""

    def __init__(self, memory: float, *, batching_is_free: bool = False) -> None:
        """As long as only one size was seen, a larger one is taken to cost as much, or else in proportion."""
        self._memory = memory
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._free = batching_is_free

    def add(self, size: float, cost: float) -> None:
        sums = (self._weight, self._x, self._y, self._xx, self._xy)
        sample = (1.0, size, cost, size * size, size * cost)
        updated = (self._memory * total + new for total, new in zip(sums, sample, strict=True))
        self._weight, self._x, self._y, self._xx, self._xy = updated

    def at(self, size: float) -> float:
        """Cost of this size; before the first sample, as if batching cost nothing, or too much."""
        if not self._weight:
            return 0.0 if self._free else math.inf
        # The guess is one more sample: nothing costs nothing, or twice the size costs the same.
        x, y = self._x / self._weight, self._y / self._weight
        guess_x, guess_y = (2 * x, y) if self._free else (0.0, 0.0)
        weight = self._weight + GUESS_WEIGHT
        mean_x, mean_y = (self._x + GUESS_WEIGHT * guess_x) / weight, (self._y + GUESS_WEIGHT * guess_y) / weight
        variance = (self._xx + GUESS_WEIGHT * guess_x**2) / weight - mean_x**2
        covariance = (self._xy + GUESS_WEIGHT * guess_x * guess_y) / weight - mean_x * mean_y
        each = covariance / variance if variance > 0 else 0.0
        return mean_y + min(max(each, 0.0), mean_y / mean_x) * (size - mean_x)


class WorkTime:
    """Seconds that work of some size takes: how a machine's cost grows with size, times how busy it is now.

    While a machine is busy few streams run, and only small batches are measured. Of one line through these alone, the
    cost of a larger batch would be in proportion, which is many times too much; so few would be let in for good.
    """

    def __init__(self, *, batching_is_free: bool) -> None:
        self._shape = LineFit(SHAPE_MEMORY, batching_is_free=batching_is_free)
        self._pace = 1.0
        self._last_size = 0.0

    def add(self, size: float, seconds: float) -> None:
        if self._last_size and (expected := self.at(size)) > 0:
            seconds = min(seconds, LARGEST_SURPRISE * expected)
        # A size that stays the same says how busy the machine is, and nothing of other sizes.
        if size != self._last_size:
            self._shape.add(size, seconds / self._pace)
        self._last_size = size
        if (usual := self._shape.at(size)) > 0:
            self._pace = PACE_MEMORY * self._pace + (1 - PACE_MEMORY) * seconds / usual

    def at(self, size: float) -> float:
        """Seconds for this size; before the first sample nothing where batching is free, else infinite."""
        return self._pace * self._shape.at(size)


class SpeechLength:
    """How many frames a text takes, learnt from what was spoken."""

    def __init__(self) -> None:
        self._fit = LineFit(SPEECH_MEMORY)
        self._fit.add(*USUAL_SPEECH)

    def add(self, tokens: int, frames: int, *, was_cut: bool) -> None:
        """A text that `was_cut` at its cap would have taken longer."""
        expected = self.at(tokens)
        frames_at_least = max(frames, expected) if was_cut else frames
        self._fit.add(max(tokens, 1), min(frames_at_least, LARGEST_SURPRISE * expected))

    def at(self, tokens: int) -> float:
        return self._fit.at(tokens)


class Capacity:
    """Whether one more stream would still be made in real time, and so would those that run.

    Talker and codec share one device, so their times add up.
    """

    def __init__(self, load_limit: float, max_chunk_frames: int, *, batching_is_free: bool) -> None:
        """`load_limit` is the share of real time that work may take; 0 admits everyone."""
        self._budget = load_limit * FRAME_SECONDS
        self._chunk_frames = max_chunk_frames
        self._tick = WorkTime(batching_is_free=batching_is_free)
        self._codec = WorkTime(batching_is_free=batching_is_free)

    def add_tick(self, rows: int, seconds: float) -> None:
        self._tick.add(rows, seconds)

    def add_codec_call(self, frames: int, seconds: float) -> None:
        """`frames` is the sum over all chunks of the call."""
        self._codec.add(frames, seconds)

    def admits(self, streams: int) -> bool:
        """Whether `streams` at once keep up; a single one is always let in, or nothing would ever be measured."""
        return streams <= 1 or not self._budget or self.frame_seconds(streams) <= self._budget

    def frame_seconds(self, streams: int) -> float:
        """Work that one frame of each of `streams` takes, in calls of full chunks."""
        if not streams:
            return 0.0
        calls = -(-streams // MAX_BATCH)
        codec = self._codec.at(streams / calls * self._chunk_frames) * calls / self._chunk_frames
        return self._tick.at(streams) + codec
