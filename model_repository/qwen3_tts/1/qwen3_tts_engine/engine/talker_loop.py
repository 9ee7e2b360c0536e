"""The talker loop: every tick gives each running stream one frame."""

import logging
import time
from collections import deque

from qwen3_tts_engine import metrics
from qwen3_tts_engine.core.batches import Batch, Chunks
from qwen3_tts_engine.engine.codec_loop import CodecLoop
from qwen3_tts_engine.engine.delivery import Delivery
from qwen3_tts_engine.engine.state import State
from qwen3_tts_engine.engine.turns import Turns
from qwen3_tts_engine.interfaces import Runner, Tick
from qwen3_tts_engine.metrics import Recorder
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.scheduling.pacing import Pacing
from qwen3_tts_engine.threads import Precedence

log = logging.getLogger(__name__)


class TalkerLoop:
    def __init__(
        self, state: State, turns: Turns, runner: Runner, codec: CodecLoop, delivery: Delivery, recorder: Recorder,
        precedence: Precedence,
    ) -> None:  # fmt: skip
        self._state, self._turns, self._runner, self._codec = state, turns, runner, codec
        self._delivery, self._recorder, self._precedence = delivery, recorder, precedence
        self._pacing = Pacing(state.scheduler.capacity)

    def run(self) -> None:
        """Launch a tick, then read the previous one, on a thread of its own; the codec is called in between."""
        launched: deque[tuple[Batch, Tick, float]] = deque()
        work: Batch | Chunks | None = None
        while (work := self._next_work(in_flight=len(launched), last=work)) is not None:
            if isinstance(work, Chunks):
                self._codec.between_ticks(work)
                continue
            started = time.perf_counter()
            # Before prefill, since newcomers may hold pages taken from preempted streams.
            if len(work.grown):
                self._runner.grow(work.grown)
            batch = self._prefill(work)
            if batch.feeds:
                self._runner.feed(batch.feeds)
            if len(batch):
                launched.append((batch, self._runner.launch(batch.slots), started))
                self._pacing.add_launch(time.perf_counter() - started)
                if len(batch) == len(batch.newcomers):
                    self._codec.announce()
            lookahead = self._runner.lookahead if len(batch) else 0
            while launched and (len(launched) > lookahead or self._codec_is_due()):
                self._collect(*launched.popleft())
            for running, _, started in launched:
                self._precedence.rest(self._pacing.seconds_to_launch(running, started, time.perf_counter()))

    def _next_work(self, in_flight: int, last: Batch | Chunks | None) -> Batch | Chunks | None:
        """What follows `last`, with so many ticks in flight; None once the engine is closed."""
        state = self._state
        with state.lock:
            while not state.closed:
                now = time.perf_counter()
                has_work = bool(in_flight) or state.scheduler.has_work(now)
                state.talker_is_idle = not has_work
                if not in_flight:
                    last_was_call = isinstance(last, Chunks)
                    chunks = self._turns.before_tick(now, talker_has_work=has_work, last_was_call=last_was_call)
                    if chunks:
                        return chunks
                wait = 0.0 if in_flight else state.scheduler.newcomers.seconds_to_gather(now)
                if has_work and not wait:
                    return state.scheduler.next_batch(now)
                state.codec_work.notify()
                with self._precedence.resting():
                    state.talker_work.wait(wait or None)
            return None

    def _codec_is_due(self) -> bool:
        with self._state.lock:
            return self._turns.is_due(time.perf_counter())

    def _prefill(self, batch: Batch) -> Batch:
        """Prefill the newcomers; returns the batch without the failed ones."""
        if not batch.newcomers:
            return batch
        now = time.perf_counter()
        for newcomer in batch.newcomers:
            if not newcomer.stream.admitted:
                self._recorder.observe(metrics.ADMISSION, now - newcomer.stream.arrived)
            newcomer.stream.admitted = now
        self._recorder.add_prefill(batch.prefill_rows, sum(newcomer.num_cached for newcomer in batch.newcomers))
        failed = self._runner.prefill(batch.newcomers)
        for newcomer, error in failed:
            log.error("prefill of %s failed: %s", newcomer.stream.key, error)
            self._delivery.fail(newcomer.stream, RequestError(f"prefill failed: {error}"))
        return batch.without([newcomer for newcomer, _ in failed])

    def _collect(self, batch: Batch, tick: Tick, started: float) -> None:
        """Read a tick's frames. A first audio that is awaited is decoded here; the codec's loops have the rest."""
        state = self._state
        with self._precedence.resting():
            frames = self._runner.collect(tick)
        now = time.perf_counter()
        with state.lock:
            drained = state.scheduler.collect(batch, frames, now)
            first = self._turns.after_tick(now)
            if not first:
                state.codec_work.notify()
        if first:
            self._codec.between_ticks(first)
        # Recorded after the call, since a listener awaits it and the codec's loops would also ask for the interpreter's
        # lock.
        self._recorder.add_tick(now - started, len(batch), [now - new.stream.admitted for new in batch.newcomers])
        with state.lock:
            seconds = self._pacing.end_tick(batch, started, now)
            state.scheduler.capacity.add_tick(len(batch), seconds, batch.prefill_rows)
            if first:
                state.codec_work.notify()
        self._delivery.end(drained)
