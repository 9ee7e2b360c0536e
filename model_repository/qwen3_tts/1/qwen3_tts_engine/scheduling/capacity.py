"""Predicts from measured ticks and codec calls how many streams the machine serves in real time."""

import math

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.codec.contract import MAX_BATCH

# Exponential decay of a sample's weight per newer sample. The pace (how busy the machine is) averages about 50 samples,
# some seconds; the shape (cost by size) is a property of the machine and averages 500 changes of size.
PACE_DECAY = 0.98
SHAPE_DECAY = 0.998
# Outliers are clipped to this multiple of the prediction.
MAX_OUTLIER = 3.0
# Weight of the prior beside the samples: only decisive while all samples have the same size.
PRIOR_WEIGHT = 0.5

# Shortest prefill: the time of a tick, which is subtracted, is an estimate.
MIN_SECONDS = 1e-4

# Prior: text tokens and frames of typical speech (matches COMMON_POSITIONS in talker/loader.py).
TYPICAL_SPEECH = (100, 375)
SPEECH_DECAY = 0.98

# Seconds for prefill, sending and jitter; and the number of frames of every stream that may precede a listener's next
# audio: its own, and those of a tick and a codec call just begun. Tested with 256 streams on one H200.
URGENT_LEAD, URGENT_FRAMES = 0.02, 3
# Cap on frame_seconds in urgent_lead; a slower machine gains nothing from a longer lead.
MAX_URGENT_FRAME_SECONDS = 0.02


def urgent_lead(frame_seconds: float) -> float:
    """Seconds of buffered audio below which a listener is urgent; a frame of all streams takes `frame_seconds`."""
    return URGENT_LEAD + URGENT_FRAMES * min(frame_seconds, MAX_URGENT_FRAME_SECONDS)


class LineFit:
    """Cost as fixed + each * size, both non-negative: least squares over exponentially decaying samples."""

    def __init__(self, decay: float, *, batching_is_free: bool = False) -> None:
        """`batching_is_free` selects the prior: cost independent of size, otherwise proportional to it."""
        self._decay = decay
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._free = batching_is_free

    def add(self, size: float, cost: float) -> None:
        sums = (self._weight, self._x, self._y, self._xx, self._xy)
        sample = (1.0, size, cost, size * size, size * cost)
        updated = (self._decay * total + new for total, new in zip(sums, sample, strict=True))
        self._weight, self._x, self._y, self._xx, self._xy = updated

    def at(self, size: float) -> float:
        """Cost of a size; before the first sample 0 if batching is free, otherwise infinite."""
        if not self._weight:
            return 0.0 if self._free else math.inf
        # The prior is one more sample: size 0 costs 0, or twice the size costs the same.
        x, y = self._x / self._weight, self._y / self._weight
        prior_x, prior_y = (2 * x, y) if self._free else (0.0, 0.0)
        weight = self._weight + PRIOR_WEIGHT
        mean_x, mean_y = (self._x + PRIOR_WEIGHT * prior_x) / weight, (self._y + PRIOR_WEIGHT * prior_y) / weight
        variance = (self._xx + PRIOR_WEIGHT * prior_x**2) / weight - mean_x**2
        covariance = (self._xy + PRIOR_WEIGHT * prior_x * prior_y) / weight - mean_x * mean_y
        each = covariance / variance if variance > 0 else 0.0
        return mean_y + min(max(each, 0.0), mean_y / mean_x) * (size - mean_x)


class WorkTime:
    """Seconds that work of a given size takes: the machine's cost by size (shape), times its current load (pace).

    With a single fit, a busy machine that admits few streams would measure only small batches, extrapolate larger ones
    in proportion, many times too high, and so never admit more.
    """

    def __init__(self, *, batching_is_free: bool) -> None:
        self._shape = LineFit(SHAPE_DECAY, batching_is_free=batching_is_free)
        self._pace = 1.0
        self._last_size = 0.0

    def add(self, size: float, seconds: float) -> None:
        if self._last_size and (expected := self.at(size)) > 0:
            seconds = min(seconds, MAX_OUTLIER * expected)
        # An unchanged size informs the pace only, not the shape.
        if size != self._last_size:
            self._shape.add(size, seconds / self._pace)
        self._last_size = size
        if (predicted := self._shape.at(size)) > 0:
            self._pace = PACE_DECAY * self._pace + (1 - PACE_DECAY) * seconds / predicted

    def at(self, size: float) -> float:
        """Seconds for a size; before the first sample 0 if batching is free, otherwise infinite."""
        return self._pace * self._shape.at(size)


class SpeechLength:
    """Predicts the number of frames of a text from earlier parts."""

    def __init__(self) -> None:
        self._fit = LineFit(SPEECH_DECAY)
        self._fit.add(*TYPICAL_SPEECH)

    def add(self, tokens: int, frames: int, *, was_cut: bool) -> None:
        """Add a finished part; `was_cut` marks one that its frame cap truncated."""
        expected = self.at(tokens)
        min_frames = max(frames, expected) if was_cut else frames
        self._fit.add(max(tokens, 1), min(min_frames, MAX_OUTLIER * expected))

    def at(self, tokens: int) -> float:
        return self._fit.at(tokens)


class Capacity:
    """Predicts whether all streams stay in real time with one more of them.

    Talker and codec share one device, so their times add up.
    """

    def __init__(self, load_limit: float, max_chunk_frames: int, *, batching_is_free: bool) -> None:
        """`load_limit` is the share of real time that work may take; 0 admits every stream."""
        self._budget = load_limit * FRAME_SECONDS
        self._chunk_frames = max_chunk_frames
        self._tick = WorkTime(batching_is_free=batching_is_free)
        self._codec = WorkTime(batching_is_free=batching_is_free)
        self._prefill = WorkTime(batching_is_free=batching_is_free)

    def add_tick(self, streams: int, seconds: float, prefill_rows: int = 0) -> None:
        """A tick of `streams`, which includes or follows the prefill of that many rows."""
        if not prefill_rows:
            self._tick.add(streams, seconds)
        elif 0 < (tick := self.tick_seconds(streams)) < math.inf:
            self._prefill.add(prefill_rows, max(seconds - tick, MIN_SECONDS))

    def add_codec_call(self, frames: int, seconds: float) -> None:
        """`frames` is the sum over all chunks of the call."""
        self._codec.add(frames, seconds)

    def tick_seconds(self, streams: int) -> float:
        return self._tick.at(streams)

    def added_prefill_seconds(self, rows: int, more: int) -> float:
        """Seconds that a prefill of `more` rows takes beyond one of `rows`; infinite if unknown."""
        seconds = self._prefill.at(more)
        return seconds - self._prefill.at(rows) if seconds < math.inf else seconds

    def first_audio_seconds(self, streams: int, rows: int) -> float:
        """Seconds from the start of prefilling `rows` to the first audio of their `streams`."""
        return self._prefill.at(rows) + self._tick.at(streams) + self._codec.at(streams)

    def admits(self, streams: int) -> bool:
        """Whether `streams` stay in real time; a single one is always admitted, so that measurements start."""
        return streams <= 1 or not self._budget or self.frame_seconds(streams) <= self._budget

    def frame_seconds(self, streams: int) -> float:
        """Seconds of work for one frame of each of `streams`, with full chunks in each codec call."""
        if not streams:
            return 0.0
        calls = -(-streams // MAX_BATCH)
        codec = self._codec.at(streams / calls * self._chunk_frames) * calls / self._chunk_frames
        return self._tick.at(streams) + codec
