"""Simulates the engine under load in virtual time: the real scheduler and chunker, with the costs of one H200.

    python -m scripts.lab.simulation --burst 8,64,256 --concurrency 64,256,1000 --request-rate 20,180,350

Compares scheduling policies without a GPU, in seconds. The costs of ticks, prefills and codec calls are those recorded
in docs/benchmarks. Python's own time is left out, so that a real server is slower. A policy must gain more than 3 %: as
much depends on how callers happen to come in groups.
"""

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from qwen3_tts_engine.audio import FRAME_SECONDS, SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.calls import GREEDY
from qwen3_tts_engine.core.batches import Audio, Batch, Chunks, Frames
from qwen3_tts_engine.core.streams import Prompt, Stream
from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.chunker import Chunker, Need
from qwen3_tts_engine.scheduling.newcomers import MAX_PREFILL_SECONDS
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from scripts.benchmarks.common import NullSink, show

RECORDS = Path(__file__).parents[2] / "docs" / "benchmarks"
# Rows of a prompt in the talker's record.
RECORDED_ROWS = 60
PROMPT_ROWS, FRAMES, CODEBOOKS = 59, 71, 16
SLOTS, PAGE_SIZE, PAGES, LOAD_LIMIT, CHUNK_FRAMES = 1024, 32, 1 << 16, 0.9, 16
# A codec call's way to code2wav or back, and the talker's speed during a call: each ms of one beside a tick made it
# 0.88 ms longer (c=256 on one H200, commit b51d99f).
CALL_SECONDS, TALKER_SHARE = 0.0003, 0.12
# Time between two requests of a burst; time in which callers of a closed loop begin, as the client's; their mean
# pause, assumed.
ARRIVAL_SECONDS, STAGGER_SECONDS, PAUSE_SECONDS = 0.0004, 1.0, 0.004
# Time of a closed loop before the measured time.
SETTLING_SECONDS = 2.0
# The engine's own measurements before the load, as after its warm-up.
WARM_UP, WARM_UP_STREAMS = 50, (1, 4, 16, 64)
NO_CODES = np.zeros((PROMPT_ROWS, CODEBOOKS), np.int32)
NAMES = {"burst": "burst", "closed": "c", "open": "rps"}
# Rounding of virtual time.
EPSILON = 1e-9
console = Console(width=140)


@dataclass(frozen=True)
class Costs:
    """Seconds on the GPU; `ticks` and `prefills` are [sizes, seconds], `codec` is (fixed, per frame)."""

    ticks: np.ndarray
    prefills: np.ndarray
    codec: tuple[float, float]

    @classmethod
    def read(cls, folder: Path = RECORDS) -> "Costs":
        """Reads the records of talker and codec."""
        talker, codec = (json.loads((folder / f"{name}-h200.json").read_text())["rows"] for name in ("talker", "codec"))
        streams = [row["batch"] for row in talker]
        ticks = [row["ms_per_frame"] / 1e3 for row in talker]
        prefills = [row["prefill_to_first_frame_ms"] / 1e3 - tick for row, tick in zip(talker, ticks, strict=True)]
        each, fixed = np.polyfit([row["batch"] * row["frames"] for row in codec], [row["ms"] / 1e3 for row in codec], 1)
        rows = RECORDED_ROWS * np.array(streams)
        return cls(np.array([streams, ticks]), np.array([rows, prefills]), (float(fixed), float(each)))

    def scaled(self, factor: float) -> "Costs":
        """Costs on a slower GPU."""
        fixed, each = self.codec
        slower = np.array([[1.0], [factor]])
        return Costs(self.ticks * slower, self.prefills * slower, (fixed * factor, each * factor))

    def tick(self, streams: int, prefill_rows: int = 0) -> float:
        return _at(self.ticks, streams) + (_at(self.prefills, prefill_rows) if prefill_rows else 0.0)

    def call(self, frames: int) -> float:
        return self.codec[0] + self.codec[1] * frames


def _at(measured: np.ndarray, size: int) -> float:
    """Linear between the measured sizes and beyond the largest."""
    sizes, seconds = measured
    beyond = max(size - sizes[-1], 0) * (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    return float(np.interp(size, sizes, seconds) + beyond)


@dataclass
class Listener:
    """Times in virtual seconds."""

    arrived: float
    first_audio: float | None = None
    underrun: float = 0.0
    largest_stall: float = 0.0

    def hear(self, now: float, frames: int) -> None:
        if self.first_audio is None:
            self.first_audio = self.underrun = now
        self.largest_stall = max(self.largest_stall, now - self.underrun)
        self.underrun = max(self.underrun, now) + frames * FRAME_SECONDS


@dataclass
class Simulation:
    costs: Costs
    mode: str
    """burst, closed or open, as in `qwen3-tts bench`."""
    value: float
    seconds: float
    seed: int = 0
    now: float = 0.0
    listeners: dict[str, Listener] = field(default_factory=dict)

    def __post_init__(self) -> None:
        table, capacity = SlotTable(SLOTS, FRAMES, CODEBOOKS), Capacity(LOAD_LIMIT, CHUNK_FRAMES, batching_is_free=True)
        limits = SchedulerLimits(PAGE_SIZE, PAGES, SLOTS, SLOTS, MAX_PREFILL_SECONDS)
        self._scheduler = Scheduler(table, limits, capacity)
        self._chunker = Chunker(table, CHUNK_FRAMES, capacity.frame_seconds)
        for streams in WARM_UP_STREAMS * WARM_UP:
            capacity.add_tick(streams, self.costs.tick(streams))
            capacity.add_tick(streams, self.costs.tick(streams, streams * PROMPT_ROWS), streams * PROMPT_ROWS)
            capacity.add_codec_call(streams, self.costs.call(streams) + 2 * CALL_SECONDS)
        self._random = np.random.default_rng(self.seed)
        self._arrivals = list(self._first_arrivals())
        self._measured_from = SETTLING_SECONDS if self.mode == "closed" else 0.0
        self._frames = 0
        # Seconds that remain of the tick, and of each part of the codec call: to code2wav, on the GPU, and back.
        self._tick: tuple[Batch, float, list[float]] | None = None
        self._call: tuple[Chunks, float, list[float]] | None = None

    def run(self) -> dict[str, Any]:
        """A row of the table."""
        end = self._measured_from + self.seconds
        while self._arrivals or self._scheduler.live:
            if self.now >= end and self.mode != "burst":
                break
            self._submit()
            self._begin()
            self._elapse()
            self._end()
        return self._row()

    def _first_arrivals(self) -> Iterator[float]:
        if self.mode != "open":
            interval = ARRIVAL_SECONDS if self.mode == "burst" else STAGGER_SECONDS / self.value
            yield from (interval * i for i in range(int(self.value)))
            return
        time = 0.0
        while (time := time + self._random.exponential(1 / self.value)) < self.seconds:
            yield time

    def _submit(self) -> None:
        while self._arrivals and self._arrivals[0] <= self.now:
            key, prompt = str(len(self.listeners)), Prompt(np.zeros(PROMPT_ROWS, np.int32), NO_CODES, [], PROMPT_ROWS)
            arrived = heapq.heappop(self._arrivals)
            self.listeners[key] = Listener(arrived)
            self._scheduler.submit(Stream(key, prompt, GREEDY, FRAMES, NullSink(), arrived=arrived))

    def _begin(self) -> None:
        if self._tick is None and self._scheduler.has_work(self.now):
            batch = self._scheduler.next_batch(self.now)
            self._tick = (batch, self.now, [self.costs.tick(len(batch), batch.prefill_rows)])
        need = Need.WORTHWHILE if self._tick else Need.ANY
        if self._call is None and (chunks := self._chunker.next_chunks(self.now, need)):
            gpu = self.costs.call(chunks.codes[..., 0].size)
            self._call = (chunks, self.now, [CALL_SECONDS, gpu, CALL_SECONDS])

    def _elapse(self) -> None:
        """Advances to the next event."""
        speed = TALKER_SHARE if self._call and len(self._call[2]) == 2 else 1.0
        events = [self._arrivals[0] - self.now] if self._arrivals else []
        events += [self._tick[2][0] / speed] if self._tick else []
        events += [self._call[2][0]] if self._call else []
        step = max(min(events, default=self.seconds), 0.0)
        self.now += step
        if self._tick:
            self._tick[2][0] -= step * speed
        if self._call:
            self._call[2][0] -= step

    def _end(self) -> None:
        scheduler = self._scheduler
        if self._tick and self._tick[2][0] <= EPSILON:
            batch, begun, _ = self._tick
            scheduler.capacity.add_tick(len(batch), self.now - begun, batch.prefill_rows)
            frames = Frames(np.zeros((len(batch), CODEBOOKS), np.int64), np.zeros(len(batch), bool))
            scheduler.collect(batch, frames, self.now)
            self._tick = None
        if self._call and self._call[2][0] <= EPSILON:
            chunks, begun, parts = self._call
            parts.pop(0)
            if not parts:
                scheduler.capacity.add_codec_call(chunks.codes[..., 0].size, self.now - begun)
                for stream, count in zip(chunks.streams, chunks.counts.tolist(), strict=True):
                    self.listeners[stream.key].hear(self.now, count)
                    self._frames += count if self.now >= self._measured_from else 0
                ended = scheduler.settle(self._chunker.done(chunks, audible(chunks), self.now))
                if self.mode == "closed":
                    for _ in ended:
                        heapq.heappush(self._arrivals, self.now + self._random.exponential(PAUSE_SECONDS))
                self._call = None

    def _row(self) -> dict[str, Any]:
        measured = [listener for listener in self.listeners.values() if listener.arrived >= self._measured_from]
        heard = [listener for listener in measured if listener.first_audio is not None]
        first = [1e3 * ((listener.first_audio or 0.0) - listener.arrived) for listener in heard]
        return {
            "load": f"{NAMES[self.mode]}={self.value:g}",
            "requests": len(measured),
            "ttfa_p50_ms": round(float(np.percentile(first, 50)), 1),
            "ttfa_p95_ms": round(float(np.percentile(first, 95)), 1),
            "audio_s_per_s": round(self._frames * FRAME_SECONDS / (self.now - self._measured_from), 1),
            "stalled_over_50ms": sum(listener.largest_stall > 0.05 for listener in self.listeners.values()),
        }


def audible(chunks: Chunks) -> Audio:
    """Speech of the chunks' length."""
    pcm = [np.empty(count * SAMPLES_PER_FRAME, np.int16) for count in chunks.counts]
    return Audio(pcm, np.zeros(len(chunks), np.int32))


def main(
    burst: Annotated[str, typer.Option(help="requests at once to an idle server")] = "8,64,256",
    concurrency: Annotated[str, typer.Option(help="closed loops")] = "4,64,256,1000",
    request_rate: Annotated[str, typer.Option(help="open loops")] = "20,180,350",
    seconds: Annotated[float, typer.Option(min=1, help="per load, in virtual time")] = 5.0,
) -> None:
    costs = Costs.read()
    loads = {"burst": burst, "closed": concurrency, "open": request_rate}
    values = ((mode, float(value)) for mode, text in loads.items() for value in filter(None, text.split(",")))
    show([Simulation(costs, mode, value, seconds).run() for mode, value in values], console)


if __name__ == "__main__":
    typer.run(main)
