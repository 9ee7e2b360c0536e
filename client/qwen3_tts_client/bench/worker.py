"""Worker process: runs its share of a load's streams."""

import asyncio
import contextlib
import gc
import random
import signal
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from qwen3_tts_client.bench.load import Phase, Share, run_phase
from qwen3_tts_client.bench.prompt import BenchPrompt
from qwen3_tts_client.bench.target import Target, TargetConfig, make_target
from qwen3_tts_client.errors import ClientError, SpeechError
from qwen3_tts_client.protocol import SpeechRequest
from qwen3_tts_client.records.record import ClientRecord, RecordWriter, RequestRecord
from qwen3_tts_client.records.timeline import TimelineRecorder
from qwen3_tts_client.stream import Responses

LAG_PERIOD_S = 0.005


@dataclass(frozen=True)
class WorkerConfig:
    share: Share
    target: TargetConfig
    request: SpeechRequest  # defaults for fields that a prompt omits
    prompts: list[BenchPrompt]
    records: Path
    random_seed: int


@dataclass(frozen=True)
class PhaseDone:
    client: ClientRecord
    end_ns: int
    interrupted: bool


def main(config: WorkerConfig, pipe: Connection) -> None:
    """Runs phases from the pipe until it closes. Sends "ready" or a ClientError first, then one PhaseDone per phase.

    SIGINT ends the current phase: its streams are cancelled and recorded as such.
    """
    with contextlib.suppress(EOFError, BrokenPipeError):
        asyncio.run(_serve(config, pipe))


async def _serve(config: WorkerConfig, pipe: Connection) -> None:
    target = make_target(config.target)
    worker = Worker(config, target, RecordWriter(config.records))
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, worker.interrupt)
    try:
        await target.open()
    except ClientError as error:
        pipe.send(error)
        return
    pipe.send("ready")
    try:
        while True:
            # Blocks the event loop, which is idle between phases.
            pipe.send(await worker.run(pipe.recv()))
    finally:
        await target.close()


class Worker:
    def __init__(self, config: WorkerConfig, target: Target, writer: RecordWriter) -> None:
        self._config = config
        self._target = target
        self._writer = writer
        self._order = random.Random(config.random_seed).sample(range(len(config.prompts)), len(config.prompts))
        self._task: asyncio.Task[None] | None = None

    def interrupt(self) -> None:
        if self._task:
            self._task.cancel()

    async def run(self, phase: Phase) -> PhaseDone:
        # Keeps the garbage collector from scanning start-up objects while streams run.
        gc.collect()
        gc.freeze()
        with LoopMonitor() as monitor:
            self._task = asyncio.create_task(
                run_phase(phase, self._config.share, lambda index, due_ns: self._send(phase, index, due_ns))
            )
            await asyncio.wait([self._task])
        interrupted = self._task.cancelled()
        if not interrupted:
            self._task.result()  # raises errors of this program
        client = monitor.record(phase.load, self._config.share.worker)
        return PhaseDone(client, time.perf_counter_ns(), interrupted)

    async def _send(self, phase: Phase, index: int, due_ns: int | None) -> bool:
        prompt = self._config.prompts[self._order[index % len(self._order)]]
        request = self._request(prompt, index)
        recorder = TimelineRecorder(due_ns)
        try:
            await self._consume(request, f"{phase.load}-{phase.name}-{index}", recorder)
        finally:
            self._writer.append(
                RequestRecord(
                    load=phase.load,
                    index=index,
                    phase="warmup" if index < phase.warmups else phase.name,
                    worker=self._config.share.worker,
                    prompt=prompt.id,
                    language=request.language,
                    text_chars=len(request.text),
                    timeline=recorder.stop(),
                )
            )
        return recorder.timeline.outcome == "ok"

    async def _consume(self, request: SpeechRequest, request_id: str, recorder: TimelineRecorder) -> None:
        try:
            responses = Responses()
            stream = await self._target.prepare(request, request_id, responses)
            recorder.mark_sent()
            async with contextlib.aclosing(stream):
                async for arrival_ns, chunk in stream:
                    recorder.add(arrival_ns, chunk)
            recorder.finish(end=responses.end)
        except SpeechError as error:
            recorder.finish(error)

    def _request(self, prompt: BenchPrompt, index: int) -> SpeechRequest:
        seed = self._config.request.seed
        if seed is None:
            seed = (self._config.random_seed + index) % 2**63
        return replace(self._config.request, seed=seed, **prompt.fields)


class LoopMonitor:
    """Measures the event loop's lag and the process's CPU share of one core."""

    def __enter__(self) -> "LoopMonitor":
        self._lags_s: list[float] = []
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()
        self._task = asyncio.create_task(self._watch())
        return self

    def __exit__(self, *exc: object) -> None:
        self._task.cancel()

    def record(self, load: int, worker: int) -> ClientRecord:
        # Without a stream a phase ends at once, and a process that never waits uses its whole core.
        wall_s = max(time.perf_counter() - self._wall_s, LAG_PERIOD_S)
        cpu_share = (time.process_time() - self._cpu_s) / wall_s
        p50, p99 = np.percentile(self._lags_s, (50, 99)) * 1e3 if self._lags_s else (0.0, 0.0)
        lag_ms = {"p50": float(p50), "p99": float(p99), "max": max(self._lags_s, default=0.0) * 1e3}
        return ClientRecord(load, worker, cpu_share, lag_ms)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self._lags_s.append(loop.time() - due_s)
