"""What the scheduler holds, by metric name."""

from qwen3_tts_engine import metrics
from qwen3_tts_engine.scheduling.scheduler import Scheduler


def read_gauges(scheduler: Scheduler) -> dict[str, float]:
    return {
        metrics.RUNNING.name: scheduler.slots.num_used,
        metrics.WAITING.name: len(scheduler.admission.queue),
        metrics.PAGES_USED.name: scheduler.pages.num_used / scheduler.pages.size,
    }
