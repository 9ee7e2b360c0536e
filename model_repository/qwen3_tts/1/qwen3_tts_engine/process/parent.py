"""Starts the engine's process and connects it with Triton's."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from qwen3_tts_engine.core.streams import Caller
from qwen3_tts_engine.interfaces import CallModel, ModelCall
from qwen3_tts_engine.metrics import Readings
from qwen3_tts_engine.process.messages import (
    Accept,
    Answer,
    CallOther,
    Cancel,
    Died,
    End,
    Loaded,
    Logged,
    Opened,
    Pcm,
    Report,
    Reported,
    Voices,
)
from qwen3_tts_engine.process.pipe import Messages, Writer
from qwen3_tts_engine.request import RequestError, SequencePosition, Unavailable

log = logging.getLogger("qwen3_tts")

# Pipes for responses, each with a thread that sends. A response is a round trip to Triton, 0.2 ms, most of it waiting.
# One sender stalled 1 017 of some 2 000 streams of 1 000 listeners on an H200; two stalled none and 144 in two runs;
# four cost 256 listeners 9 % of the throughput.
SENDERS = 2
# Concurrent calls of other models: two encoders, and the codec for streams and for a voice.
MODEL_CALLS = 4
REPORT_SECONDS = 5.0
EXIT_SECONDS = 20.0


class EngineProcess:
    """The engine, in a process of its own, as the adapter sees it."""

    def __init__(
        self,
        entry: Path,
        args: dict[str, str],
        call_model: CallModel,
        on_death: Callable[[BaseException], None],
        max_requests: int,
    ) -> None:
        """Returns when its models are loaded. `entry` is the program (engine_process.py), `args` are Triton's.

        Raises RuntimeError with the cause.
        """
        self.is_open, self.is_alive = False, True
        self._ended: RequestError | None = None
        self._call_model, self._on_death, self._max_requests = call_model, on_death, max_requests
        self._callers: dict[str, Caller] = {}
        self._readings: SimpleQueue[Readings] = SimpleQueue()
        self._loaded: SimpleQueue[str | None] = SimpleQueue()
        self._models = ThreadPoolExecutor(MODEL_CALLS, thread_name_prefix="model calls")
        # While the end of the process is no death: before its models are loaded, and once it is to end.
        self._may_end = True
        control, *data = self._start(entry, args)
        self._threads = [threading.Thread(target=self._run_control, args=(control,), name="control", daemon=True)]
        self._threads += [
            threading.Thread(target=self._send, args=(pipe,), name=f"sender {pipe}", daemon=True) for pipe in data
        ]
        for thread in self._threads:
            thread.start()
        if error := self._loaded.get():
            self.close()
            raise RuntimeError(error)

    @property
    def pid(self) -> int:
        return self._process.pid

    def accept(self, fields: dict[str, Any], caller: Caller, position: SequencePosition | None) -> None:
        if self._requests.num_waiting >= self._max_requests:
            raise Unavailable(f"busy: {self._max_requests} requests wait")
        self._callers[caller.key] = caller
        # Checked last: until then `_end_all` may have missed this caller.
        if self._ended:
            del self._callers[caller.key]
            raise self._ended
        self._requests.send(Accept(caller.key, caller.arrived, fields, position))

    def cancel(self, key: str) -> None:
        self._requests.send(Cancel(key))

    def readings(self) -> Readings:
        self._requests.send(Report())
        try:
            return self._readings.get(timeout=REPORT_SECONDS)
        except Empty:
            return Readings()

    def close(self) -> None:
        self._may_end = True
        self._requests.close()
        try:
            self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        self._models.shutdown()

    def _start(self, entry: Path, args: dict[str, str]) -> list[int]:
        """Start the process; returns the descriptors of its control pipe and of its pipes for responses."""
        requests, requests_end = os.pipe()
        outgoing = [os.pipe() for _ in range(1 + SENDERS)]
        theirs = [requests, *(write for _, write in outgoing)]
        # In a stub, sys.executable may not be Python.
        python = shutil.which("python3") or sys.executable
        command = [python, str(entry), *map(str, theirs), json.dumps(args)]
        # In a new session, so that Ctrl-C at the terminal reaches only the server.
        self._process = subprocess.Popen(command, pass_fds=theirs, start_new_session=True)
        for descriptor in theirs:
            os.close(descriptor)
        self._requests = Writer(requests_end, "requests")
        return [read for read, _ in outgoing]

    def _send(self, pipe: int) -> None:
        for message in Messages(pipe):
            try:
                self._deliver(message)
            except Exception as error:
                log.warning("sending to %s failed: %s", message.key, error)
                self.cancel(message.key)

    def _deliver(self, message: Pcm | Voices | End) -> None:
        match message:
            case Pcm(key, pcm, words):
                # A chunk of a cancelled request may follow its end.
                if caller := self._callers.get(key):
                    caller.send(np.frombuffer(pcm, np.int16), words)
            case Voices(key, voices):
                self._callers.pop(key).reply(voices)
            case End(key, error, summary):
                self._callers.pop(key).finish(error, summary)

    def _run_control(self, pipe: int) -> None:
        for message in Messages(pipe):
            match message:
                case Logged(level, text):
                    log.log(level, text)
                case CallOther():
                    self._models.submit(self._call, message)
                case Reported(readings):
                    self._readings.put(readings)
                case Loaded(error):
                    self._may_end = error is not None
                    self._loaded.put(error)
                case Opened():
                    self.is_open = True
                case Died(error):
                    self._die(error)
        self._end_all()

    def _end_all(self) -> None:
        """The process has ended: end what it had begun."""
        self._ended = error = Unavailable(f"the engine's process ended with exit code {self._process.wait()}")
        self._readings.put(Readings())
        self._loaded.put(str(error))
        if not self._may_end:
            self._die(error)
        while self._callers:
            _, caller = self._callers.popitem()
            caller.finish(error)

    def _die(self, error: RequestError) -> None:
        if self.is_alive:
            self.is_alive = False
            self._on_death(error)

    def _call(self, call: CallOther) -> None:
        result: list[np.ndarray] | RequestError
        try:
            result = self._call_model(ModelCall(call.model, call.inputs, call.outputs, call.parameters))
        except RequestError as error:
            result = error
        except Exception as error:
            result = RequestError(f"{call.model}: {error}")
        self._requests.send(Answer(call.call, result))
