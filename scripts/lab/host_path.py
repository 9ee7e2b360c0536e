"""Time that the engine's host code adds to the first audio of a lone stream, with stand-ins for both models.

    python -m scripts.lab.host_path

Needs no GPU. Other data fills the caches before each stream, as after a pause of milliseconds. Only ratios of two
commits count, run in turn on one machine.
"""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from code2wav_step import line as codec_line
from code2wav_step.config import Contract
from qwen3_tts_engine.audio import NUM_CODEBOOKS, SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.calls import GREEDY
from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.codec.contract import RowCounts, terms
from qwen3_tts_engine.codec.line import Line
from qwen3_tts_engine.codec.row_calls import RowCalls
from qwen3_tts_engine.core.batches import Frames, Newcomer, TextFeed
from qwen3_tts_engine.core.streams import Prompt, Stream
from qwen3_tts_engine.engine.delivery import Sending
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.interfaces import ModelCall, RunnerLimits, SchedulerLimits
from qwen3_tts_engine.process.child import PipeCaller
from qwen3_tts_engine.process.pipe import Messages, Writer
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.newcomers import MAX_PREFILL_SECONDS
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from qwen3_tts_engine.threads import SWITCH_SECONDS
from scripts.benchmarks.common import show

# GPU time of prompt and first frame, and of the codec's call.
FRAME_SECONDS, CALL_SECONDS = 0.003, 0.0003
SLOTS, PAGES, PAGE_SIZE, PROMPT_ROWS, FRAMES, CHUNK_FRAMES, HISTORY = 1024, 1 << 14, 8, 59, 4, 16, 72
PAUSE_SECONDS = 0.02
# More than the second-level cache of a core.
CACHE_BYTES = 64 << 20
# An audible sample.
LOUD = 10_000
STEPS = ("launched", "frame", "call", "samples", "sent")
NAMES = ("queued to launched", "frame to codec call", "codec call", "samples to sent", "in all")
console = Console()


class Runner:
    """interfaces.Runner whose frames take FRAME_SECONDS and are equal."""

    lookahead = 1
    has_graphs = False
    limits = RunnerLimits(SLOTS, PAGES, PAGE_SIZE, max_positions=1 << 16, max_trailing=0)

    def __init__(self, times: dict[str, float]) -> None:
        self._times = times

    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        return []

    def grow(self, grown: np.ndarray) -> None: ...

    def feed(self, feeds: list[TextFeed]) -> None: ...

    def launch(self, slots: np.ndarray) -> tuple[Frames, float]:
        now, rows = time.perf_counter(), len(slots)
        self._times.setdefault("launched", now)
        return Frames(np.full((rows, NUM_CODEBOOKS), 7), np.zeros(rows, bool)), now + FRAME_SECONDS

    def collect(self, tick: tuple[Frames, float]) -> Frames:
        frames, end = tick
        while (left := end - time.perf_counter()) > 0:
            time.sleep(left)
        self._times.setdefault("frame", time.perf_counter())
        return frames


class TimedLine(Line):
    """A line whose first call is timed."""

    def __init__(self, times: dict[str, float]) -> None:
        super().__init__()
        self._times = times

    def call(self, codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        self._times.setdefault("call", time.perf_counter())
        pcm = super().call(codes, places)
        self._times.setdefault("samples", time.perf_counter())
        return pcm


class WaitedCaller(PipeCaller):
    """One whose end can be waited for."""

    def __init__(self, key: str, writer: Writer) -> None:
        super().__init__(key, time.perf_counter(), writer, {})
        self.ended = threading.Event()

    def finish(self, *result: Any) -> None:
        super().finish(*result)
        self.ended.set()


def main(streams: Annotated[int, typer.Option(help="measured, one after the other")] = 300) -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    times: dict[str, float] = {}
    with running(times) as (engine, writer):
        rows = [measure(engine, writer, str(i), times) for i in range(streams)]
    columns = 1e6 * np.array(rows).T
    table = [
        {"host, us": name, "median": round(np.median(column)), "p90": round(np.percentile(column, 90))}
        for name, column in zip(NAMES, columns, strict=True)
    ]
    show(table, console)


def measure(engine: Engine, writer: Writer, key: str, times: dict[str, float]) -> list[float]:
    """Seconds of each step of the host, and of all."""
    time.sleep(PAUSE_SECONDS)
    np.zeros(CACHE_BYTES, np.uint8).fill(1)
    times.clear()
    caller = WaitedCaller(key, writer)
    prompt = Prompt(np.zeros(PROMPT_ROWS, np.int32), np.zeros((PROMPT_ROWS, NUM_CODEBOOKS), np.int32), [], PROMPT_ROWS)
    queued = time.perf_counter()
    engine.submit(Stream(key, prompt, GREEDY, FRAMES, caller))
    caller.ended.wait()
    launched, frame, call, samples, sent = (times[step] for step in STEPS)
    steps = (launched - queued, call - frame, samples - call - CALL_SECONDS, sent - samples)
    return [*steps, sum(steps)]


@contextmanager
def running(times: dict[str, float]) -> Iterator[tuple[Engine, Writer]]:
    """An engine, and the pipe of its responses, which another process reads."""
    line = TimedLine(times)
    responses, end = os.pipe()
    start(serve_codec, line.address)
    while not line.is_open():
        time.sleep(PAUSE_SECONDS)
    start(read_responses, os.getpid(), responses)
    writer = Writer(end, "responses")

    @contextmanager
    def sending() -> Iterator[None]:
        with writer.held():
            yield
        times.setdefault("sent", time.perf_counter())

    engine = build_engine(times, line, sending)
    engine.start()
    try:
        yield engine, writer
    finally:
        engine.close()
        writer.close()


def build_engine(times: dict[str, float], line: Line, sending: Sending) -> Engine:
    table, capacity = SlotTable(SLOTS, FRAMES, NUM_CODEBOOKS), Capacity(0, CHUNK_FRAMES, batching_is_free=True)
    limits = SchedulerLimits(PAGE_SIZE, PAGES, SLOTS, SLOTS, MAX_PREFILL_SECONDS)
    chunker = Chunker(table, CHUNK_FRAMES, capacity.frame_seconds)
    calls = RowCalls(call_model, lambda model: nullcontext(), line)
    codec = Code2Wav(calls.call, 1, RowCounts(SLOTS, 0), HISTORY, CHUNK_FRAMES, calls.announce)
    codec.claim()
    return Engine(Scheduler(table, limits, capacity), chunker, Runner(times), codec, sending=sending)


def call_model(call: ModelCall) -> list[np.ndarray]:
    raise NotImplementedError("the line takes all calls")


def start(run: Callable[..., None], *arguments: object) -> None:
    """Runs it in a process that ends with this one."""
    multiprocessing.get_context("spawn").Process(target=run, args=arguments, daemon=True).start()


def serve_codec(address: str) -> None:
    def run(codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
        end = time.perf_counter() + CALL_SECONDS
        while time.perf_counter() < end:
            pass
        pcm[:] = LOUD

    contract, sizes = Contract(**terms()), (NUM_CODEBOOKS, SAMPLES_PER_FRAME)  # type: ignore[arg-type]
    codec_line.Line(address, contract, sizes, run, lambda codes, places: None, nullcontext())
    threading.Event().wait()


def read_responses(process: int, pipe: int) -> None:
    for _ in Messages(os.open(f"/proc/{process}/fd/{pipe}", os.O_RDONLY)):
        pass


if __name__ == "__main__":
    typer.run(main)
