"""The entry point of an engine's process whose service does what each request says."""

import os
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from qwen3_tts_engine import metrics
from qwen3_tts_engine.core.streams import FinishReason, Summary
from qwen3_tts_engine.interfaces import CallModel, ModelCall
from qwen3_tts_engine.process import child
from qwen3_tts_engine.request import RequestError


class Service:
    def __init__(
        self, args: dict[str, str], config: object, call_model: CallModel, on_open: Callable[[], None], **hooks: Any
    ) -> None:
        if "exit" in args:
            os._exit(int(args["exit"]))
        if "error" in args:
            raise ValueError(args["error"])
        self._call_model, self._on_open, self._on_death = call_model, on_open, hooks["on_death"]
        self._waiting: dict[str, Any] = {}
        recorder = metrics.Recorder()
        scheduler = SimpleNamespace(newcomers=SimpleNamespace())
        self.engine = SimpleNamespace(cancel=self._cancel, recorder=recorder, scheduler=scheduler)

    def begin(self) -> None:
        self._on_open()

    def tokenize(self, texts: Sequence[object]) -> None: ...

    def close(self) -> None:
        for caller in self._waiting.values():
            caller.finish(RequestError("the service is closing"))

    def accept(self, fields: dict[str, Any], caller: Any, position: object) -> None:
        match fields["do"]:
            case "speak":
                caller.send(fields["samples"], fields.get("words", ()))
                self.engine.recorder.count(metrics.FRAMES, len(fields["samples"]))
                caller.finish(None, Summary(FinishReason.LENGTH, 2, 3, 4, 5))
            case "describe":
                caller.finish(RequestError(f"INVALID {position} at {caller.arrived}"))
            case "voices":
                caller.reply(["a", "b"])
            case "call":
                # On a thread of the engine, since the reading thread receives the answer.
                threading.Thread(target=self._call, args=(fields["model"], caller)).start()
            case "die":
                self._on_death(RuntimeError("injected"))
                caller.finish(None)
            case "wait":
                self._waiting[caller.key] = caller
            case "end and send":
                caller.finish(None)
                caller.send(np.zeros(1, np.int16))
            case "send and wait":
                caller.send(np.zeros(1, np.int16))
                self._waiting[caller.key] = caller

    def _call(self, model: str, caller: Any) -> None:
        try:
            [result] = self._call_model(ModelCall(model, {"x": np.arange(1, 3, dtype=np.int16)}, ["y"]))
        except RequestError as error:
            caller.finish(error)
        else:
            caller.send(result)
            caller.finish(None)

    def _cancel(self, key: str) -> None:
        caller = self._waiting.pop(key)
        caller.finish(RequestError(f"cancelled, and its caller says {caller.is_cancelled()}"))


if __name__ == "__main__":
    with patch.object(child, "read_config", lambda args: None):
        child.main(Service)  # type: ignore[arg-type]
