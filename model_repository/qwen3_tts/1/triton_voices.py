"""Where requests are told apart: speech, speech in a voice that has to be found first, and operations on voices."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.codec.states import CodecStates
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.engine import Engine
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.sequences import SequencePiece, Sequences
from qwen3_tts_engine.request import Cancelled, InvalidRequest, RequestError, SynthesisRequest
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import encoders
from qwen3_tts_engine.voices.service import Voices
from qwen3_tts_engine.voices.store import VoiceRecord
from triton_io import CPU, ResponseSink, call_model

log = logging.getLogger("qwen3_tts")

SPEAK, REGISTER, LIST, DELETE = "speak", "register_voice", "list_voices", "delete_voice"
# Takes a request whose voice is found; raises RequestError.
Begin = Callable[[SynthesisRequest], None]
# Ends one that cannot be begun.
Refuse = Callable[[RequestError], None]
OPERATIONS = (SPEAK, REGISTER, LIST, DELETE)


class Desk:
    """Takes every request (triton_io.Desk). `voices` is None for a checkpoint that clones none."""

    def __init__(self, engine: Engine, prompts: PromptBuilder, voices: Voices | None, sequences: Sequences) -> None:
        self.engine = engine
        self._sequences = sequences
        self._prompts = prompts
        self._voices = voices

    def accept(self, fields: dict[str, Any], sink: ResponseSink, piece: SequencePiece | None) -> None:
        """Raises RequestError for a request that is refused at once; one that waits for its voice is answered later.

        `piece` says where it stands in a sequence of requests, if it does.
        """
        if piece is not None:
            self._accept_piece({"text": ""} | fields, sink, piece)
            return
        operation = fields.pop("operation", SPEAK)
        if operation not in OPERATIONS:
            raise InvalidRequest("operation", operation, f"one of {', '.join(OPERATIONS)}")
        if operation != SPEAK:
            self._operate(operation, SynthesisRequest.of({"text": "", **fields}), sink)
            return
        request = SynthesisRequest.of(fields)
        submit = partial(self.engine.submit, sink=sink, key=sink.key, arrived=sink.arrived)
        self._speak(request, sink, submit, partial(self.engine.refuse, sink))

    def close(self) -> None:
        if self._voices is not None:
            self._voices.close()

    def _accept_piece(self, fields: dict[str, Any], sink: ResponseSink, piece: SequencePiece) -> None:
        """The first request of a sequence gets all audio; the others bring text and end at once."""
        text = fields["text"]
        if not piece.start:
            for name in fields.keys() - {"text"}:
                raise InvalidRequest(name, fields[name], "goes with the first request of a sequence")
            self._sequences.append(piece.sequence_id, text, piece.last)
            sink.finish(None)
            return
        if (operation := fields.pop("operation", SPEAK)) != SPEAK:
            raise InvalidRequest("operation", operation, f"{SPEAK} alone may be a sequence")
        # The text itself is looked at when it is there.
        request = SynthesisRequest.of(fields | {"text": "."})
        sequence = self._sequences.open(piece.sequence_id, text, piece.last)
        begin = partial(self._sequences.begin, sequence, sink=sink, key=sink.key, arrived=sink.arrived)

        def refuse(error: RequestError) -> None:
            self._sequences.abandon(sequence, partial(self.engine.refuse, sink, error))

        try:
            self._speak(request, sink, begin, refuse)
        except Exception:
            self._sequences.abandon(sequence)
            raise

    def _speak(self, request: SynthesisRequest, sink: ResponseSink, begin: Begin, refuse: Refuse) -> None:
        """`begin` a request once its voice is found, or `refuse` it then; raises for one that is refused at once."""
        if self._voices is None:
            begin(request)
            return
        self._prompts.check(request)
        self._voices.find(request, lambda voice: self._speak_in(voice, request, sink, begin, refuse))

    def _speak_in(
        self,
        voice: Voice | RequestError,
        request: SynthesisRequest,
        sink: ResponseSink,
        begin: Begin,
        refuse: Refuse,
    ) -> None:
        if isinstance(voice, RequestError):
            # Not raised: an error that a frame of its own traceback refers to lives until the garbage is collected.
            refuse(voice)
            return
        try:
            if sink.is_cancelled():
                raise Cancelled("cancelled by the client")
            begin(request.in_voice(voice))
        except RequestError as error:
            refuse(error)
        except Exception as error:
            log.exception("request %s failed before it was queued", sink.key)
            refuse(RequestError(f"internal error: {error}"))

    def _operate(self, operation: str, request: SynthesisRequest, sink: ResponseSink) -> None:
        if self._voices is None:
            raise InvalidRequest("operation", operation, self._prompts.mode)

        def then(records: list[VoiceRecord] | RequestError) -> None:
            if isinstance(records, RequestError):
                self.engine.refuse(sink, records)
            else:
                sink.reply([record.public() for record in records])

        if operation == REGISTER:
            self._voices.register(request, then)
        elif operation == DELETE:
            self._voices.delete(request.voice, then)
        else:
            self._voices.list(then)


class BlsEncoder:
    """The models that read a reference (voices.Encoder), called through Triton."""

    def __init__(self, config: EngineConfig, states: CodecStates) -> None:
        self._speaker_encoder, self._max_chunk_frames = config.speaker_encoder, config.max_chunk_frames
        self._states = states

    def encode(self, audio: np.ndarray, mel: np.ndarray, num_samples: int, in_context: bool) -> Voice:
        [vector] = _call(self._speaker_encoder, {encoders.MEL: torch.from_numpy(mel)[None]}, [encoders.X_VECTOR])
        x_vector = vector[0].numpy().copy()
        if not np.isfinite(x_vector).all():
            raise RequestError(f"{self._speaker_encoder}: gave no finite vector")
        if not in_context:
            return Voice(x_vector)
        count = torch.tensor([[num_samples]], dtype=torch.int32)
        inputs = {encoders.AUDIO: torch.from_numpy(audio)[None], encoders.NUM_SAMPLES: count}
        [codes] = _call(encoders.CODEC_ENCODER, inputs, [encoders.CODES])
        return Voice(x_vector, codes[0].numpy().copy(), state=self._warm(codes))

    def adopt(self, voice: Voice) -> Voice:
        if voice.state is None:
            return voice
        state = voice.state.to(self._states.device, self._states.dtype)
        return Voice(voice.x_vector, voice.codes, voice.text, state)

    def _warm(self, codes: torch.Tensor) -> torch.Tensor:
        """The codec's state behind codes int32 [1, frames, codebooks], whose sound nobody hears."""
        state = torch.zeros(1, self._states.state_size, dtype=self._states.dtype)
        for start, stop in contract.split_frames(codes.shape[1], self._max_chunk_frames):
            history = torch.tensor([[min(start, self._states.max_history)]], dtype=torch.int32)
            chunk = codes[:, start:stop].contiguous()
            inputs = {contract.CODES: chunk, contract.STATE: state, contract.HISTORY: history}
            [state] = _call(contract.MODEL_NAME, inputs, [contract.STATE_OUT])
        return state[0].to(self._states.device, copy=True)


def _call(model: str, inputs: dict[str, torch.Tensor], outputs: Sequence[str]) -> list[torch.Tensor]:
    """Outputs of a model, on the CPU; raises RequestError."""
    return [tensor.cpu() for tensor in call_model(model, inputs, outputs, CPU)]
