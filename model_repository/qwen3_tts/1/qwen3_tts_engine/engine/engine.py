"""The engine: streams are submitted, and their sinks get audio from its threads."""

from collections.abc import Callable
from contextlib import nullcontext

from qwen3_tts_engine import metrics
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.engine.codec_loop import CodecLoop
from qwen3_tts_engine.engine.delivery import Delivery, Sending
from qwen3_tts_engine.engine.state import State
from qwen3_tts_engine.engine.talker_loop import TalkerLoop
from qwen3_tts_engine.engine.turns import Turns
from qwen3_tts_engine.interfaces import CodecClient, Runner
from qwen3_tts_engine.request import Cancelled, RequestError, Unavailable
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.gauges import read_gauges
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.threads import LoopThreads, Precedence


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
        sending: Sending = nullcontext,
    ) -> None:
        """With `take_turns` codec calls and ticks never overlap: on a GPU that processes time-slice, a call of 0.6 ms
        took 12 ms beside a talker (one H200). `on_thread_start` runs first on each thread; `sending` is Delivery's."""
        has_lookahead = runner.lookahead > 0
        fixed = {metrics.KERNELS.name: float(runner.has_graphs)}
        self.recorder = recorder = metrics.Recorder(lambda: read_gauges(scheduler) | fixed)
        self.precedence = precedence = Precedence(applies=has_lookahead)
        self.on_death: Callable[[BaseException], None] = lambda error: None
        self.scheduler, self.state = scheduler, State(scheduler, chunker)
        self.delivery = Delivery(self.state, recorder, sending)
        turns = Turns(self.state, in_turn=take_turns, has_lookahead=has_lookahead, max_calls=codec.max_calls)
        codec_loop = CodecLoop(self.state, turns, codec, self.delivery, recorder, precedence)
        talker_loop = TalkerLoop(self.state, turns, runner, codec_loop, self.delivery, recorder, precedence)
        # One delivers what it decoded while the others await calls: with 1 000 streams both took as long (one H100).
        codec_loops = {f"codec {i}": codec_loop.run for i in range(0 if take_turns else codec.max_calls + 1)}
        self._loops = {"talker": talker_loop.run} | codec_loops
        self._threads = LoopThreads(
            self._loops, on_thread_start, lambda e: self.die(RequestError(f"the engine died: {e}"))
        )

    def start(self) -> None:
        self._threads.start()

    @property
    def is_alive(self) -> bool:
        return self.state.closed is None

    def submit(self, stream: Stream) -> None:
        """Queue a stream with a unique key; from now on its sink is called.

        A stream without a prompt waits for `update`. Raises Unavailable when the engine is full or closed.
        """
        self.state.submit(stream)

    def update(self, stream: Stream, change: Callable[[], None]) -> None:
        """Call `change`, which alters the text of a submitted stream, under the lock; no effect on an ended stream."""
        try:
            ended = self.state.update(stream, change)
        except Unavailable as error:
            self.fail(stream, error)
        else:
            self.delivery.end([stream] if ended else [])

    def cancel(self, key: str) -> None:
        """Cancel a stream; its slot and pages are free at the next tick. Safe for one that ended."""
        if stream := self.state.find(key):
            self.fail(stream, Cancelled("cancelled by the client"))

    def fail(self, stream: Stream, error: RequestError) -> None:
        """End a stream with an error; no effect on an ended stream."""
        self.delivery.fail(stream, error)

    def end_all(self, reason: RequestError) -> None:
        """End every stream with an error."""
        for stream in self.state.end_all():
            self.delivery.finish(stream.sink, reason)

    def close(self, timeout: float = 10.0) -> None:
        """End every stream with UNAVAILABLE and stop all threads; safe to call twice."""
        self._shut_down(Unavailable("the server is shutting down"))
        self._threads.join(self._loops, timeout)
        # Send the last output of the loops.
        self.delivery.flush()

    def die(self, error: Exception) -> None:
        """End every stream with an error and refuse new ones with UNAVAILABLE."""
        self._shut_down(error if isinstance(error, RequestError) else RequestError(f"internal error: {error}"))
        self.on_death(error)

    def _shut_down(self, reason: RequestError) -> None:
        # Requests after a crash get UNAVAILABLE, so that callers try another server.
        self.state.close(Unavailable(str(reason)))
        self.end_all(reason)
