"""The engine: runs the talker and codec loops and owns the lock over all state."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from qwen3_tts_engine import metrics
from qwen3_tts_engine.codec.sound import to_send, trailing_silence
from qwen3_tts_engine.core.batches import Audio, Batch, Chunks
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.delivery import Delivery, Sending
from qwen3_tts_engine.interfaces import CodecClient, Decoded, Runner, Tick, decode
from qwen3_tts_engine.request import Cancelled, RequestError, Unavailable
from qwen3_tts_engine.scheduling.chunker import Chunker, Need
from qwen3_tts_engine.scheduling.gauges import read_gauges
from qwen3_tts_engine.scheduling.pacing import Pacing
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.threads import LoopThreads, Precedence

log = logging.getLogger(__name__)


class Engine:
    def __init__(
        self,
        scheduler: Scheduler,
        chunker: Chunker,
        runner: Runner,
        codec: CodecClient,
        *,
        take_turns: bool = False,
        on_thread_start: Callable[[], None] = lambda: None,
        sending: Sending | None = None,
    ) -> None:
        """With `take_turns` codec calls and ticks never overlap: on a GPU that processes time-slice, a call of 0.6 ms
        took 12 ms beside a talker (one H200). `on_thread_start` runs first on each thread; `sending` is Delivery's."""
        fixed = {metrics.KERNELS.name: float(runner.lookahead > 0)}
        self.recorder = metrics.Recorder(lambda: read_gauges(scheduler) | fixed)
        self.precedence = Precedence(applies=runner.lookahead > 0)
        self.on_death: Callable[[BaseException], None] = lambda error: None
        self.scheduler, self._chunker, self._runner, self._codec = scheduler, chunker, runner, codec
        # One lock guards all state; each condition wakes one loop.
        self._lock = threading.Lock()
        self._talker_work, self._codec_work = threading.Condition(self._lock), threading.Condition(self._lock)
        self._closed: RequestError | None = None
        self._pacing, self._take_turns, self._is_idle = Pacing(scheduler.capacity), take_turns, False
        self.delivery = Delivery(self.recorder, self.fail, sending)
        self._codec_turn = threading.Lock()  # from the selection of chunks to the end of their call
        # One delivers what it decoded while the other awaits its call: with 1 000 streams both took as long (one H100).
        codec_loops = dict.fromkeys(() if take_turns else ("codec 0", "codec 1"), self._run_codec)
        self._loops = {"talker": self._run_talker} | codec_loops
        loops = self._loops | self.delivery.loops
        self._threads = LoopThreads(loops, on_thread_start, lambda e: self.die(RequestError(f"the engine died: {e}")))

    def start(self) -> None:
        self._threads.start()

    @property
    def is_alive(self) -> bool:
        return self._closed is None

    def submit(self, stream: Stream) -> None:
        """Queue a stream with a unique key; from now on its sink is called.

        A stream without a prompt waits for `update`. Raises Unavailable when the engine is full or closed.
        """
        with self._lock:
            if self._closed:
                raise self._closed
            self.scheduler.submit(stream)
            self.scheduler.newcomers.arrive(time.perf_counter())
            self._talker_work.notify()

    def update(self, stream: Stream, change: Callable[[], None]) -> None:
        """Call `change`, which alters the text of a submitted stream, under the lock; no effect on an ended stream."""
        try:
            with self._lock:
                change()
                ended = self.scheduler.update(stream)
                self._talker_work.notify()
                self._codec_work.notify()
        except Unavailable as error:
            self.fail(stream, error)
        else:
            self.delivery.end([stream] if ended else [])

    def cancel(self, key: str) -> None:
        """Cancel a stream; its slot and pages are free at the next tick. Safe for one that ended."""
        with self._lock:
            stream = self.scheduler.live.get(key)
        if stream:
            self.fail(stream, Cancelled("cancelled by the client"))

    def end_all(self, reason: RequestError) -> None:
        """End every stream with an error."""
        with self._lock:
            ended = [stream for stream in list(self.scheduler.live.values()) if self.scheduler.end(stream)]
            self._talker_work.notify_all()
            self._codec_work.notify_all()
        for stream in ended:
            self.delivery.finish(stream.sink, reason)

    def close(self, timeout: float = 10.0) -> None:
        """End every stream with UNAVAILABLE and stop all threads; safe to call twice."""
        self._shut_down(Unavailable("the server is shutting down"))
        self._threads.join(self._loops, timeout)
        # After their last output.
        self.delivery.close()
        self._threads.join(self.delivery.loops, timeout)

    def die(self, error: Exception) -> None:
        """End every stream with an error and refuse new ones with UNAVAILABLE."""
        self._shut_down(error if isinstance(error, RequestError) else RequestError(f"internal error: {error}"))
        self.on_death(error)

    def _run_talker(self) -> None:
        """The talker loop: launch a tick, then read the previous one; with `take_turns`, call the codec in between."""
        launched: deque[tuple[Batch, Tick, float]] = deque()
        work: Batch | Chunks | None = None
        while (work := self._next_work(idle=not launched, last=work)) is not None:
            if isinstance(work, Chunks):
                self._decode_between_ticks(work)
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
            while launched and (len(launched) > lookahead or self._codec_is_next()):
                self._collect(*launched.popleft())
            for running, _, started in launched:
                self.precedence.rest(self._pacing.seconds_to_launch(running, started, time.perf_counter()))

    def _run_codec(self) -> None:
        """A codec loop, without `take_turns`."""
        while True:
            with self._codec_turn:
                self.precedence.wait()
                if (chunks := self._next_chunks()) is None:
                    return
                decoded = decode(self._codec, chunks)
            self.precedence.wait()
            self._deliver(decoded)

    def _decode_between_ticks(self, chunks: Chunks) -> None:
        with self.precedence.resting():
            self._deliver(decode(self._codec, chunks))

    def _deliver(self, decoded: Decoded) -> None:
        """Send the audio of a codec call, then account for it. Until then its streams cannot end."""
        chunks, seconds = decoded.chunks, decoded.ended - decoded.called
        sent = to_send(chunks, decoded.pcm)
        self.delivery.put(decoded, sent)
        self.delivery.flush()
        self.recorder.add_codec_call(decoded.called - float(chunks.ready_at.min()), seconds, len(chunks))
        audio = Audio(sent, trailing_silence(chunks, decoded.pcm))
        with self._lock:
            self.scheduler.capacity.add_codec_call(chunks.codes[..., 0].size, seconds)
            drained = self._chunker.done(chunks, audio, decoded.ended)
            ended = self.scheduler.settle(drained) | self.scheduler.cut_silent(chunks)
            self._talker_work.notify()
        self.delivery.end(ended)

    def _next_work(self, idle: bool, last: Batch | Chunks | None) -> Batch | Chunks | None:
        """The talker thread's next work after `last`, None once the engine is closed; `idle`: no tick is in flight."""
        with self._lock:
            while not self._closed:
                now = time.perf_counter()
                has_work = not idle or self.scheduler.has_work(now)
                self._is_idle = not has_work
                need = Need.between_ticks(has_work, last_was_call=isinstance(last, Chunks))
                if self._take_turns and idle and (chunks := self._chunker.next_chunks(now, need)):
                    return chunks
                wait = self.scheduler.newcomers.seconds_to_gather(now) if idle else 0.0
                if has_work and not wait:
                    return self.scheduler.next_batch(now)
                self._codec_work.notify()
                with self.precedence.resting():
                    self._talker_work.wait(wait or None)
            return None

    def _codec_is_next(self) -> bool:
        """Whether a codec call is due after the ticks in flight, so that no further tick should be launched."""
        with self._lock:
            in_turn = self._take_turns or self.scheduler.admission.awaits_first_audio
            return in_turn and self._chunker.will_be_due(time.perf_counter())

    def _next_chunks(self) -> Chunks | None:
        with self._lock:
            while not self._closed:
                # On a CPU a call takes longer than a tick, and an urgent one would come late behind a tick and a call.
                need = Need.ANY if self._is_idle or not self._runner.lookahead else Need.WORTHWHILE
                if chunks := self._chunker.next_chunks(time.perf_counter(), need):
                    return chunks
                self._codec_work.wait()
            return None

    def _prefill(self, batch: Batch) -> Batch:
        """Prefill the newcomers; returns the batch without the failed ones."""
        if not batch.newcomers:
            return batch
        now = time.perf_counter()
        for newcomer in batch.newcomers:
            if not newcomer.stream.admitted:
                self.recorder.observe(metrics.ADMISSION, now - newcomer.stream.arrived)
            newcomer.stream.admitted = now
        self.recorder.add_prefill(batch.prefill_rows, sum(newcomer.num_cached for newcomer in batch.newcomers))
        failed = self._runner.prefill(batch.newcomers)
        for newcomer, error in failed:
            log.error("prefill of %s failed: %s", newcomer.stream.key, error)
            self.fail(newcomer.stream, RequestError(f"prefill failed: {error}"))
        return batch.without([newcomer for newcomer, _ in failed])

    def _collect(self, batch: Batch, tick: Tick, started: float) -> None:
        with self.precedence.resting():
            frames = self._runner.collect(tick)
        now = time.perf_counter()
        with self._lock:
            drained = self.scheduler.collect(batch, frames, now)
            first = self._chunker.next_chunks(now) if self.scheduler.admission.awaits_first_audio else None
            if not first:
                self._codec_work.notify()
        if first:
            self._decode_between_ticks(first)
        # After the call, which a listener awaits; the codec's loops, too, would ask for the interpreter's lock.
        self.recorder.add_tick(now - started, len(batch), [now - new.stream.admitted for new in batch.newcomers])
        with self._lock:
            self.scheduler.capacity.add_tick(len(batch), self._pacing.end_tick(batch, started, now), batch.prefill_rows)
            if first:
                self._codec_work.notify()
        self.delivery.end(drained)

    def fail(self, stream: Stream, error: RequestError) -> None:
        """End a stream with an error; no effect on an ended stream."""
        with self._lock:
            ended = self.scheduler.end(stream)
            self._talker_work.notify()
        if ended:
            self.delivery.finish(stream.sink, error)

    def _shut_down(self, reason: RequestError) -> None:
        with self._lock:
            # Requests after a crash get UNAVAILABLE, so that callers try another server.
            self._closed = self._closed or Unavailable(str(reason))
        self.end_all(reason)
