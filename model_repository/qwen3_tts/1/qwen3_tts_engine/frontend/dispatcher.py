"""Dispatches synthesis, text pieces and voice operations."""

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from qwen3_tts_engine.core.streams import Caller
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.sequences import Sequences
from qwen3_tts_engine.request import (
    LIST_SPEAKERS,
    Cancelled,
    InvalidRequest,
    RequestError,
    SequencePosition,
    SpeechOptions,
    SynthesisRequest,
    Unavailable,
    VoiceOperation,
    VoiceOperationName,
)
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.record import VoiceRecord
from qwen3_tts_engine.voices.service import Voices

log = logging.getLogger("qwen3_tts")

SPEAK = "speak"
OPERATIONS = (SPEAK, *get_args(VoiceOperationName))


Begin = Callable[[SpeechOptions], None]
"""Starts a request whose voice is resolved; raises RequestError."""
Refuse = Callable[[RequestError], None]


class Dispatcher:
    def __init__(
        self,
        engine: Engine,
        prompts: PromptBuilder,
        voices: Voices | None,
        sequences: Sequences,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """`voices` is None for checkpoints without voice cloning; while `is_draining`, only open sequences continue."""
        self._engine = engine
        self._prompts = prompts
        self._voices = voices
        self._sequences = sequences
        self._is_draining = is_draining

    def accept(self, fields: dict[str, Any], caller: Caller, position: SequencePosition | None) -> None:
        """Dispatch a request; `position` is its place in a sequence, if any.

        Raises RequestError for an immediate refusal; later ones go through the caller.
        """
        if (position is None or position.start) and self._is_draining():
            raise Unavailable("the server is draining: send the request to another server")
        operation = fields.pop("operation", SPEAK)
        if operation not in OPERATIONS:
            raise InvalidRequest("operation", operation, f"unknown: choose one of {', '.join(OPERATIONS)}")
        if position is not None:
            if operation != SPEAK:
                raise InvalidRequest("operation", operation, f"only {SPEAK} can be a sequence")
            self._accept_piece(fields.pop("text", ""), fields, caller, position)
        elif operation != SPEAK:
            self._run_voice_operation(VoiceOperation.of(fields | {"operation": operation}), caller)
        else:
            request = SynthesisRequest.of(fields)
            self._speak(request, caller, partial(self._submit, caller), partial(self.refuse, caller))

    def refuse(self, caller: Caller, error: RequestError) -> None:
        """End a request that was not queued."""
        self._engine.delivery.finish(caller, error)

    def close(self) -> None:
        if self._voices is not None:
            self._voices.close()

    def _submit(self, caller: Caller, request: SpeechOptions) -> None:
        assert isinstance(request, SynthesisRequest)
        self._engine.submit(self._prompts.stream(request, caller, caller.key, caller.arrived))

    def _accept_piece(self, text: str, fields: dict[str, Any], caller: Caller, position: SequencePosition) -> None:
        """The first request of a sequence receives all audio; the others add text and end at once."""
        if not position.start:
            for name in fields:
                raise InvalidRequest(name, fields[name], "allowed only on the first request of a sequence")
            self._sequences.append(position.sequence_id, text, position.last)
            caller.finish(None)
            return
        options = SpeechOptions.of(fields)
        sequence = self._sequences.open(position.sequence_id, text, position.last)
        begin = partial(self._sequences.begin, sequence, sink=caller, key=caller.key, arrived=caller.arrived)

        def refuse(error: RequestError) -> None:
            self._sequences.abandon(sequence, partial(self.refuse, caller, error))

        try:
            self._speak(options, caller, begin, refuse)
        except Exception:
            self._sequences.abandon(sequence)
            raise

    def _speak(self, request: SpeechOptions, caller: Caller, begin: Begin, refuse: Refuse) -> None:
        """`begin` or `refuse` a request once its voice is resolved. Raises RequestError for an immediate refusal."""
        if self._voices is None:
            begin(request)
            return
        self._prompts.check(request)
        self._voices.find(request, lambda voice: self._speak_with_voice(voice, request, caller, begin, refuse))

    def _speak_with_voice(
        self, voice: Voice | RequestError, request: SpeechOptions, caller: Caller, begin: Begin, refuse: Refuse
    ) -> None:
        if isinstance(voice, RequestError):
            # Not raised: error and traceback frames would form a reference cycle, freed only by the garbage collector.
            refuse(voice)
            return
        try:
            if caller.is_cancelled():
                raise Cancelled("cancelled by the client")
            begin(request.in_voice(voice))
        except RequestError as error:
            refuse(error)
        except Exception as error:
            log.exception("request %s failed before it was queued", caller.key)
            refuse(RequestError(f"internal error: {error}"))

    def _run_voice_operation(self, request: VoiceOperation, caller: Caller) -> None:
        if request.operation == LIST_SPEAKERS:
            caller.reply([json.dumps(speaker, ensure_ascii=False) for speaker in self._prompts.speakers()])
            return
        if self._voices is None:
            raise InvalidRequest("operation", request.operation, self._prompts.mode)

        def reply(records: list[VoiceRecord] | RequestError) -> None:
            if isinstance(records, RequestError):
                self.refuse(caller, records)
            else:
                caller.reply([record.public() for record in records])

        match request.operation:
            case "register_voice":
                self._voices.register(request, reply)
            case "delete_voice":
                self._voices.delete(request.voice, reply)
            case "list_voices":
                self._voices.list(reply)
