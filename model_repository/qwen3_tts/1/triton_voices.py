"""Where requests are told apart: speech, speech in a voice that has to be found first, and operations on voices."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from qwen3_tts_engine import code2wav, encoders
from qwen3_tts_engine.codec import CodecStates
from qwen3_tts_engine.engine import Engine
from qwen3_tts_engine.prompt import PromptBuilder
from qwen3_tts_engine.request import Cancelled, InvalidRequest, RequestError, SynthesisRequest
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voice_store import VoiceRecord
from qwen3_tts_engine.voices import Voices
from triton_io import ResponseSink, model_error, output_tensor

log = logging.getLogger("qwen3_tts")

SPEAK, REGISTER, LIST, DELETE = "speak", "register_voice", "list_voices", "delete_voice"
OPERATIONS = (SPEAK, REGISTER, LIST, DELETE)


class Desk:
    """Takes every request (triton_io.Desk). `voices` is None for a checkpoint that clones none."""

    def __init__(self, engine: Engine, prompts: PromptBuilder, voices: Voices | None) -> None:
        self.engine = engine
        self._prompts = prompts
        self._voices = voices

    def accept(self, fields: dict[str, Any], sink: ResponseSink) -> None:
        """Raises RequestError for a request that is refused at once; one that waits for its voice is answered later."""
        operation = fields.pop("operation", SPEAK)
        if operation not in OPERATIONS:
            raise InvalidRequest("operation", operation, f"one of {', '.join(OPERATIONS)}")
        if operation != SPEAK:
            self._operate(operation, SynthesisRequest.of({"text": "", **fields}), sink)
            return
        request = SynthesisRequest.of(fields)
        if self._voices is None:
            self.engine.submit(request, sink, sink.key)
        else:
            self._prompts.check(request)
            self._voices.find(request, lambda voice: self._speak(request, voice, sink))

    def close(self) -> None:
        if self._voices is not None:
            self._voices.close()

    def _speak(self, request: SynthesisRequest, voice: Voice | RequestError, sink: ResponseSink) -> None:
        try:
            if isinstance(voice, RequestError):
                raise voice
            if sink.is_cancelled():
                raise Cancelled("cancelled by the client")
            self.engine.submit(request.in_voice(voice), sink, sink.key, sink.arrived)
        except RequestError as error:
            self.engine.refuse(sink, error)
        except Exception as error:
            log.exception("request %s failed before it was queued", sink.key)
            self.engine.refuse(sink, RequestError(f"internal error: {error}"))

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

    def __init__(self, speaker_encoder: str, states: CodecStates) -> None:
        self._speaker_encoder = speaker_encoder
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
        for start in range(0, codes.shape[1], code2wav.MAX_FRAMES):
            history = torch.tensor([[min(start, self._states.max_history)]], dtype=torch.int32)
            chunk = codes[:, start : start + code2wav.MAX_FRAMES].contiguous()
            inputs = {code2wav.CODES: chunk, code2wav.STATE: state, code2wav.HISTORY: history}
            [state] = _call(code2wav.MODEL_NAME, inputs, [code2wav.STATE_OUT])
        return state[0].to(self._states.device, copy=True)


def _call(model: str, inputs: dict[str, torch.Tensor], outputs: Sequence[str]) -> list[torch.Tensor]:
    """Outputs of a model, on the CPU; raises RequestError."""
    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=list(outputs),
        inputs=[pb_utils.Tensor.from_dlpack(name, tensor) for name, tensor in inputs.items()],
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
    )
    response = request.exec()
    if response.has_error():
        raise model_error(model, response.error())
    return [output_tensor(response, name).cpu() for name in outputs]
