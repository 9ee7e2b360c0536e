"""Client-side timeline of one request."""

import time
from dataclasses import dataclass, field

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SAMPLE_RATE, AudioChunk, End
from qwen3_tts_client.records.audible import AudibleOnset


@dataclass
class Timeline:
    """Times are perf_counter_ns, one clock for all processes of a machine."""

    sent_ns: int  # just before it was written
    scheduled_ns: int | None = None  # open loop: when it was due
    arrivals_ns: list[int] = field(default_factory=list)  # one per non-empty chunk
    samples: list[int] = field(default_factory=list)  # of each chunk
    sample_rate: int = SAMPLE_RATE  # Hz
    onset_sample: int | None = None  # first audible sample
    end_ns: int = 0
    outcome: str = "cancelled"  # one of errors.OUTCOMES; this one until the stream ends
    error: str | None = None
    withheld_samples: int = 0  # leading silence that the server did not send
    finish_reason: str | None = None  # None if the server told none


class TimelineRecorder:
    """Fills a Timeline while its stream runs."""

    def __init__(self, scheduled_ns: int | None = None) -> None:
        self.timeline = Timeline(time.perf_counter_ns(), scheduled_ns)
        self._onset: AudibleOnset | None = None

    def mark_sent(self) -> None:
        self.timeline.sent_ns = time.perf_counter_ns()

    def add(self, arrival_ns: int, chunk: AudioChunk) -> None:
        if self._onset is None:
            self.timeline.sample_rate = chunk.sample_rate or SAMPLE_RATE
            self._onset = AudibleOnset(self.timeline.sample_rate)
        self.timeline.arrivals_ns.append(arrival_ns)
        self.timeline.samples.append(len(chunk.pcm))
        self._onset.feed(chunk.pcm)
        self.timeline.onset_sample = self._onset.sample

    def finish(self, error: SpeechError | None = None, end: End | None = None) -> None:
        """Not called for a stream that its caller cancelled."""
        if end and end.usage:
            self.timeline.withheld_samples = end.usage.withheld_samples
        self.timeline.finish_reason = end.finish_reason if end else None
        if error is None and not self.timeline.samples:
            error = SpeechError("error", "the stream ended without audio")
        self.timeline.outcome = error.outcome if error else "ok"
        self.timeline.error = str(error) if error else None

    def stop(self) -> Timeline:
        self.timeline.end_ns = time.perf_counter_ns()
        return self.timeline
