"""The engine's process: a service whose requests and responses pass through pipes."""

import itertools
import json
import logging
import os
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from qwen3_tts_engine.arguments import read_config
from qwen3_tts_engine.core.streams import Summary
from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.lifecycle.logs import log_through
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
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.service import Service
from qwen3_tts_engine.threads import SWITCH_SECONDS

log = logging.getLogger("qwen3_tts")

# Time for a process to end by itself after the last message.
CLOSE_SECONDS = 15.0


class PipeCaller:
    """core.streams.Caller of a request that the other process accepted."""

    def __init__(self, key: str, arrived: float, writer: Writer, callers: dict[str, "PipeCaller"]) -> None:
        self.key, self.arrived = key, arrived
        self._writer, self._callers = writer, callers
        self.is_gone = False

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        self._writer.send(Pcm(self.key, bytearray(pcm), words))

    def reply(self, voices: list[str]) -> None:
        self._callers.pop(self.key, None)
        self._writer.send(Voices(self.key, voices))

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None:
        self._callers.pop(self.key, None)
        self._writer.send(End(self.key, error, summary))

    def is_cancelled(self) -> bool:
        return self.is_gone


class RemoteModels:
    """interfaces.CallModel through the other process."""

    def __init__(self, control: Writer) -> None:
        self._control = control
        self._numbers = itertools.count()
        self._answers: dict[int, Future[list[np.ndarray]]] = {}

    def call(self, call: ModelCall) -> list[np.ndarray]:
        number, future = next(self._numbers), Future[list[np.ndarray]]()
        self._answers[number] = future
        self._control.send(CallOther(number, call.model, call.inputs, call.outputs, call.parameters))
        return future.result()

    def answer(self, answer: Answer) -> None:
        future = self._answers.pop(answer.call)
        if isinstance(answer.result, RequestError):
            future.set_exception(answer.result)
        else:
            future.set_result(answer.result)


class Child:
    """Reads requests until the other process ends them."""

    def __init__(self, kind: type[Service], args: dict[str, str], control: Writer, data: Sequence[Writer]) -> None:
        """`data` are the pipes for responses; any exception says why the service cannot be loaded."""
        self._control, self._data = control, data
        self._callers: dict[str, PipeCaller] = {}
        self._models = RemoteModels(control)
        self.service = kind(
            args,
            read_config(args),
            self._models.call,
            on_open=lambda: control.send(Opened()),
            on_death=lambda error: control.send(Died(_as_request_error(error))),
            sending=self._held,
        )

    @contextmanager
    def _held(self) -> Iterator[None]:
        with ExitStack() as stack:
            for writer in self._data:
                stack.enter_context(writer.held())
            yield

    def run(self, received: Iterable[Any]) -> None:
        for message in received:
            match message:
                case Accept(key, arrived, fields, position):
                    # The responses of one sequence keep their order: why it failed comes before "not open".
                    pipe = hash(position.sequence_id if position else key) % len(self._data)
                    caller = PipeCaller(key, arrived, self._data[pipe], self._callers)
                    self._callers[key] = caller
                    self.service.accept(fields, caller, position)
                case Cancel(key):
                    if gone := self._callers.get(key):
                        gone.is_gone = True
                        self.service.engine.cancel(key)
                case Answer():
                    self._models.answer(message)
                case Report():
                    self._control.send(Reported(self.service.engine.recorder.take()))

    def look_ahead(self, messages: Collection[Any]) -> None:
        """Tokenizes the texts of messages that arrived together."""
        whole = [message for message in messages if isinstance(message, Accept) and message.position is None]
        self.service.tokenize([message.fields.get("text") for message in whole])


class PipeLogHandler(logging.Handler):
    def __init__(self, control: Writer) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        self._control.send(Logged(record.levelno, self.format(record)))


def main(kind: type[Service]) -> None:
    """Arguments: the descriptors of the pipe to read, of the control pipe and of those for responses; then Triton's."""
    *descriptors, encoded = sys.argv[1:]
    requests, *outgoing = map(int, descriptors)
    control, *data = [Writer(descriptor, f"pipe {descriptor}") for descriptor in outgoing]
    log_through(PipeLogHandler(control))
    sys.setswitchinterval(SWITCH_SECONDS)
    with _ending([*data, control]):
        try:
            child = Child(kind, json.loads(encoded), control, data)
        except Exception as error:
            log.exception("the engine's process cannot load the model")
            control.send(Loaded(str(error)))
            return
        control.send(Loaded(None))
        child.service.begin()
        received = Messages(requests, child.look_ahead)
        child.service.engine.scheduler.newcomers.more_follow = received.more_follow
        child.run(received)
        # Before the service, which may wait for a call that nobody answers.
        threading.Timer(CLOSE_SECONDS, os._exit, [1]).start()
        child.service.close()


@contextmanager
def _ending(writers: Sequence[Writer]) -> Iterator[None]:
    """Ends the process with what the writers have to send, and without waiting for its other threads."""
    code = 1
    try:
        yield
        code = 0
    except BaseException:
        log.exception("the engine's process failed")
    for writer in writers:
        writer.close()
    os._exit(code)


def _as_request_error(error: BaseException) -> RequestError:
    return error if isinstance(error, RequestError) else RequestError(str(error))
