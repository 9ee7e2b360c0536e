"""When the next tick is launched behind the one that runs, and how long ticks take."""

import math

from qwen3_tts_engine.core.batches import Batch
from qwen3_tts_engine.scheduling.capacity import Capacity

# Share of a tick after which the next one is launched, and launches that must fit into the rest. With 0.75, ticks that
# end early leave the device idle: 64 streams had 10 % less audio a second (one H100).
LAUNCH_SHARE, LAUNCHES = 0.5, 3
# Weight of a launch in their average.
LAUNCH_WEIGHT = 0.1


class Pacing:
    """Launches late, since who arrives after a launch waits for one more tick, but before the device has nothing to do.

    Times are perf_counter seconds.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._last_end = self._launch_seconds = 0.0
        self._last_factor = 1.0

    def add_launch(self, seconds: float) -> None:
        """`seconds` of the host for a tick, its prefill included."""
        self._launch_seconds += LAUNCH_WEIGHT * (seconds - self._launch_seconds)

    def end_tick(self, batch: Batch, launched: float, now: float) -> float:
        """Seconds that a tick took; one that was launched behind another begins when that one ends."""
        begun, self._last_end = max(launched, self._last_end), now
        seconds, predicted = now - begun, self._predict(batch)
        self._last_factor = min(seconds / predicted, 1.0) if 0 < predicted < math.inf else 1.0
        return seconds

    def seconds_to_launch(self, batch: Batch, launched: float, now: float) -> float:
        """Time until the next launch, while the tick of `batch` runs."""
        if (tick := self._predict(batch)) == math.inf:
            return 0.0
        # A launch too late makes a tick look as long as expected: an estimate too high would confirm itself.
        tick *= self._last_factor
        wait = min(LAUNCH_SHARE * tick, tick - LAUNCHES * self._launch_seconds)
        return max(max(launched, self._last_end) + wait - now, 0.0)

    def _predict(self, batch: Batch) -> float:
        return self._capacity.batch_seconds(len(batch), batch.prefill_rows)
