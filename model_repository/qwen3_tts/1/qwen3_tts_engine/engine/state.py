"""What talker and codec share: the streams, and the frames that wait for the codec, under one lock."""

import threading
import time
from collections.abc import Callable

from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.scheduler import Scheduler


class State:
    """`scheduler` and `chunker` are used under `lock` only; each condition wakes one kind of loop."""

    def __init__(self, scheduler: Scheduler, chunker: Chunker) -> None:
        self.scheduler, self.chunker = scheduler, chunker
        self.lock = threading.Lock()
        self.talker_work, self.codec_work = threading.Condition(self.lock), threading.Condition(self.lock)
        self.closed: RequestError | None = None
        """Why no stream begins any more."""
        self.talker_is_idle = False

    def submit(self, stream: Stream) -> None:
        """Raises Unavailable when the engine is full or closed."""
        with self.lock:
            if self.closed:
                raise self.closed
            self.scheduler.submit(stream)
            self.scheduler.newcomers.arrive(time.perf_counter())
            self.talker_work.notify()

    def update(self, stream: Stream, change: Callable[[], None]) -> bool:
        """Alter a stream's text by `change`; returns whether that has ended it. Raises Unavailable."""
        with self.lock:
            change()
            ended = self.scheduler.update(stream)
            self.talker_work.notify()
            self.codec_work.notify()
            return ended

    def find(self, key: str) -> Stream | None:
        with self.lock:
            return self.scheduler.live.get(key)

    def end(self, stream: Stream) -> bool:
        """Whether this call has ended the stream, which nobody else then does."""
        with self.lock:
            self.talker_work.notify()
            return self.scheduler.end(stream)

    def end_all(self) -> list[Stream]:
        """Returns the streams that this call has ended."""
        with self.lock:
            self.talker_work.notify_all()
            self.codec_work.notify_all()
            return [stream for stream in list(self.scheduler.live.values()) if self.scheduler.end(stream)]

    def close(self, reason: RequestError) -> None:
        """The first reason stays."""
        with self.lock:
            self.closed = self.closed or reason
            self.talker_work.notify_all()
            self.codec_work.notify_all()
