"""Watchdogs of the models that the engine calls: consecutive failures, and calls without an answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.interfaces import CallModel, CodecClient, ModelCall
from qwen3_tts_engine.request import RequestError, Unavailable

Die = Callable[[Exception], None]


class CallWatch:
    """Watchdog that declares the engine dead when a model call is overdue, since Triton has no timeout for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[object, tuple[str, float]] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def call(self, model: str) -> Iterator[None]:
        """Wraps a blocking call."""
        key = object()
        with self._lock:
            self._open[key] = model, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._open[key]

    def watched(self, call_model: CallModel) -> CallModel:
        """`call_model`, watched."""

        def watched(call: ModelCall) -> list[np.ndarray]:
            with self.call(call.model):
                return call_model(call)

        return watched

    def begin(self, limit_seconds: float, die: Die) -> None:
        self._thread = threading.Thread(target=self._run, args=(limit_seconds, die), name="call watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread:
            self._thread.join()

    def _run(self, limit: float, die: Die) -> None:
        while not self._closed.wait(limit / 8):
            if model := self._overdue(limit):
                die(RequestError(f"{model} has not answered for {limit:g} s (call_timeout_seconds)"))
                return

    def _overdue(self, limit: float) -> str | None:
        now = time.monotonic()
        with self._lock:
            return next((model for model, since in self._open.values() if now - since > limit), None)


class CountedCodec:
    """A codec client (interfaces.CodecClient) that declares the engine dead after `max_failures` failed calls in a row.

    Unavailable does not count, since Triton refuses calls between models during shutdown.
    """

    def __init__(self, codec: CodecClient, max_failures: int, die: Die) -> None:
        self._codec, self._max_failures, self._die = codec, max_failures, die
        self._failures = 0
        self.max_calls = codec.max_calls

    def announce(self) -> None:
        self._codec.announce()

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        try:
            answer = self._codec.decode(chunks)
        except Unavailable:
            raise
        except Exception as error:
            self._failures += 1
            if self._failures == self._max_failures:
                self._die(RequestError(f"{self._failures} codec calls in a row failed (max_codec_failures): {error}"))
            raise
        self._failures = 0
        return answer
