"""What the scheduler holds, by metric name."""

import math

from qwen3_tts_engine import metrics
from qwen3_tts_engine.scheduling.scheduler import Scheduler


def read_gauges(scheduler: Scheduler) -> dict[str, float]:
    load = scheduler.capacity.load(scheduler.table.in_use.num_active)
    return {
        metrics.RUNNING.name: scheduler.slots.num_used,
        metrics.WAITING.name: len(scheduler.admission.queue),
        metrics.PAGES_USED.name: scheduler.pages.num_used / scheduler.pages.size,
        # Infinite before the first tick.
        metrics.PREDICTED_LOAD.name: load if load < math.inf else 0.0,
    }
