"""Predicts from measured ticks and codec calls how many streams the machine serves in real time."""

import math
from bisect import bisect_left

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.codec.contract import MAX_BATCH

# Weight of a newer sample. The pace (how busy the machine is) averages about 20 ticks or calls; the shape (cost by
# size) is a property of the machine and averages 50 samples of each range of sizes.
PACE_WEIGHT, SHAPE_WEIGHT = 0.05, 0.02
RANGES_PER_DOUBLING = 2
# Exponential decay of a sample's weight per newer sample: the slope beyond all ranges averages 500.
SLOPE_DECAY = 0.998
# Outliers are clipped to this multiple of the prediction.
MAX_OUTLIER = 3.0
# Weight of the prior beside the samples: only decisive while all samples have the same size.
PRIOR_WEIGHT = 0.5

# Shortest first prefill: the time of a tick, which is subtracted, is an estimate.
MIN_SECONDS = 1e-4

# Prior: text tokens and frames of typical speech (matches COMMON_POSITIONS in talker/memory_plan.py).
TYPICAL_SPEECH = (100, 375)
SPEECH_DECAY = 0.98

# Seconds for prefill, sending and jitter; and the number of frames of every stream that may precede a listener's next
# audio: its own, and those of a tick and a codec call just begun. Tested with 256 streams on one H200.
URGENT_LEAD, URGENT_FRAMES = 0.02, 3
# Half of a frame: a listener's second chunk, which is due 80 ms after the first, may wait for one call and its own.
# With calls of 112 ms, 18 of 24 streams stalled, four at a time (demo voice, two CPU cores of 2.5 GHz).
CALL_SECONDS = FRAME_SECONDS / 2
# The largest share of real time that the codec takes by such calls.
CALL_LOAD = 0.9
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
        mean_x, mean_y, each = self.line
        return mean_y + each * (size - mean_x)

    @property
    def line(self) -> tuple[float, float, float]:
        """Mean size, mean cost, and slope; there must be a sample."""
        # The prior is one more sample: size 0 costs 0, or twice the size costs the same.
        x, y = self._x / self._weight, self._y / self._weight
        prior_x, prior_y = (2 * x, y) if self._free else (0.0, 0.0)
        weight = self._weight + PRIOR_WEIGHT
        mean_x, mean_y = (self._x + PRIOR_WEIGHT * prior_x) / weight, (self._y + PRIOR_WEIGHT * prior_y) / weight
        variance = (self._xx + PRIOR_WEIGHT * prior_x**2) / weight - mean_x**2
        covariance = (self._xy + PRIOR_WEIGHT * prior_x * prior_y) / weight - mean_x * mean_y
        each = covariance / variance if variance > 0 else 0.0
        return mean_x, mean_y, min(max(each, 0.0), mean_y / mean_x)


class CostBySize:
    """Mean cost in each range of sizes, and lines between them and beyond.

    A range keeps its cost while other sizes are measured. One line for all sizes follows those of the present load, and
    predicts others several times too high: after 1 000 streams, 600 newcomers waited for 2 s beside an idle GPU.
    """

    def __init__(self, *, batching_is_free: bool) -> None:
        self._fit = LineFit(SLOPE_DECAY, batching_is_free=batching_is_free)
        # Number of samples, mean size and mean cost by range.
        self._ranges: dict[int, tuple[int, float, float]] = {}
        # Mean sizes and costs, ascending; replaced at once, since metrics are read by other threads.
        self._points: list[tuple[float, float]] = []

    def add(self, size: float, cost: float) -> None:
        self._fit.add(size, cost)
        number = round(RANGES_PER_DOUBLING * math.log2(size))
        count, mean_size, mean_cost = self._ranges.get(number, (0, size, cost))
        weight = max(1 / (count + 1), SHAPE_WEIGHT)
        mean_size, mean_cost = mean_size + weight * (size - mean_size), mean_cost + weight * (cost - mean_cost)
        self._ranges[number] = (count + 1, mean_size, mean_cost)
        self._points = sorted((size, cost) for _, size, cost in self._ranges.values())

    def at(self, size: float) -> float:
        """Cost of a size; before the first sample 0 if batching is free, otherwise infinite."""
        points = self._points
        if not points:
            return self._fit.at(size)
        i = min(max(bisect_left(points, (size,)), 1), len(points)) - 1
        near, cost = points[i]
        if points[0][0] < size <= points[-1][0]:
            far, far_cost = points[i + 1]
            each = (far_cost - cost) / (far - near)
        else:
            each = min(self._fit.line[2], cost / near)
        return cost + each * (size - near)


class WorkTime:
    """Seconds that work of a given size takes: the machine's cost by size (shape), times its current load (pace).

    With a shape alone, a busy machine that admits few streams would measure only small batches, extrapolate larger ones
    in proportion, many times too high, and so never admit more.
    """

    def __init__(self, *, batching_is_free: bool) -> None:
        self.shape = CostBySize(batching_is_free=batching_is_free)
        self.pace = 1.0
        self._last_size = 0.0

    def add(self, size: float, seconds: float) -> None:
        if self._last_size and (expected := self.at(size)) > 0:
            seconds = min(seconds, MAX_OUTLIER * expected)
        # An unchanged size informs the pace only, not the shape.
        if size != self._last_size:
            self.shape.add(size, seconds / self.pace)
        self._last_size = size
        if (predicted := self.at(size)) > 0:
            self.follow(seconds / predicted)

    def follow(self, factor: float) -> None:
        """Adapts the pace to work that took `factor` times as long as predicted."""
        self.pace *= 1 + PACE_WEIGHT * (factor - 1)

    def at(self, size: float) -> float:
        """Seconds for a size; before the first sample 0 if batching is free, otherwise infinite."""
        return self.pace * self.shape.at(size)


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
        self._load_limit = load_limit
        self._chunk_frames = max_chunk_frames
        self._tick = WorkTime(batching_is_free=batching_is_free)
        self._codec = WorkTime(batching_is_free=batching_is_free)
        # Its pace is that of the tick.
        self._prefill = LineFit(SLOPE_DECAY)
        self._unknown_prefill = 0.0 if batching_is_free else math.inf

    def add_tick(self, streams: int, seconds: float, prefill_rows: int = 0) -> None:
        """A tick of `streams`, which includes or follows the prefill of that many rows."""
        if not prefill_rows:
            self._tick.add(streams, seconds)
        elif 0 < self.tick_seconds(streams) < math.inf:
            self._add_prefill(streams, seconds, prefill_rows)

    def _add_prefill(self, streams: int, seconds: float, rows: int) -> None:
        """Updates the pace, too: with many streams almost every tick has a prefill, so it would be out of date."""
        seconds, tick, prefill = seconds / self._tick.pace, self._tick.shape.at(streams), self._prefill.at(rows)
        if prefill == math.inf:
            self._prefill.add(rows, max(seconds - tick, MIN_SECONDS))
            return
        # Which of the two took longer than predicted is unknown: both by the same factor.
        factor = min(seconds / (tick + prefill), MAX_OUTLIER)
        self._prefill.add(rows, factor * prefill)
        self._tick.follow(factor)

    def _prefill_seconds(self, rows: int) -> float:
        shape = self._prefill.at(rows) if rows else 0.0
        return self._tick.pace * (shape if shape < math.inf else self._unknown_prefill)

    def add_codec_call(self, frames: int, seconds: float) -> None:
        """`frames` is the sum over all chunks of the call."""
        self._codec.add(frames, seconds)

    def call_frames(self, streams: int, lead: float, most: int) -> int:
        """The most frames of a codec call, at most `most`, for which it takes neither longer than CALL_SECONDS nor than
        `lead` seconds, as far as the codec of so many streams keeps up with calls so short."""
        # Where calls are short anyway this is all that is asked under the engine's lock.
        if not CALL_SECONDS < self._codec.at(most) < math.inf:
            return most
        seconds = {frames: self._codec.at(frames) for frames in range(1, most)}

        def longest(bound: float) -> int:
            return max((frames for frames, call in seconds.items() if call <= bound), default=0)

        def keeps_up(frames: int) -> bool:
            return frames > 0 and streams * seconds[frames] / frames <= CALL_LOAD * FRAME_SECONDS

        short = longest(CALL_SECONDS)
        if not keeps_up(short):
            return most
        return next(frames for frames in range(min(max(1, longest(lead)), short), short + 1) if keeps_up(frames))

    def tick_seconds(self, streams: int) -> float:
        return self._tick.at(streams)

    def batch_seconds(self, streams: int, prefill_rows: int) -> float:
        """Seconds of a tick with the prefill of that many rows."""
        return self._tick.at(streams) + self._prefill_seconds(prefill_rows)

    def added_prefill_seconds(self, rows: int, more: int) -> float:
        """Seconds that a prefill of `more` rows takes beyond one of `rows`; infinite if unknown."""
        seconds = self._prefill_seconds(more)
        return seconds - self._prefill_seconds(rows) if seconds < math.inf else seconds

    def first_audio_seconds(self, streams: int, rows: int) -> float:
        """Seconds from the start of prefilling `rows` to the first audio of their `streams`."""
        return self.batch_seconds(streams, rows) + self._codec.at(streams)

    def admits(self, streams: int) -> bool:
        """Whether `streams` stay in real time; a single one is always admitted, so that measurements start."""
        return streams <= 1 or not self._load_limit or self.load(streams) <= self._load_limit

    def load(self, streams: int) -> float:
        """Share of real time that the work for `streams` takes."""
        return self.frame_seconds(streams) / FRAME_SECONDS

    def frame_seconds(self, streams: int) -> float:
        """Seconds of work for one frame of each of `streams`, with full chunks in each codec call."""
        if not streams:
            return 0.0
        calls = -(-streams // MAX_BATCH)
        codec = self._codec.at(streams / calls * self._chunk_frames) * calls / self._chunk_frames
        return self._tick.at(streams) + codec
