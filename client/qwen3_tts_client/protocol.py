"""Wire format of the model `qwen3_tts`."""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

MODEL_NAME = "qwen3_tts"
SAMPLE_RATE = 24_000

# Tensor name to Triton data type. Every input is a field of SpeechRequest.
INPUTS = {
    "text": "BYTES",
    "language": "BYTES",
    "speaker": "BYTES",
    "instruct": "BYTES",
    "voice": "BYTES",
    "ref_audio": "FP32",
    "ref_sample_rate": "INT32",
    "ref_text": "BYTES",
    "x_vector_only": "BOOL",
    "operation": "BYTES",
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "repetition_penalty": "FP32",
    "max_frames": "INT32",
    "seed": "INT64",
    "trim_silence": "BOOL",
    "word_times": "BOOL",
    "text_policy": "BYTES",
    "normalize_text": "BOOL",
    "lexicon": "BYTES",
}
OUTPUTS = {
    "waveform": "INT16",
    "sample_rate": "INT32",
    "finish_reason": "BYTES",
    "usage": "INT32",
    "words": "BYTES",
    "spoken_share": "FP32",
    "voices": "BYTES",
}

# Id of requests that append text to an utterance: their final responses do not end its audio.
MORE_TEXT = "more-text"

_COUNTS = struct.Struct("<4i")  # of the tensor usage
_SCALAR_FORMATS = {"BOOL": "<?", "FP32": "<f", "INT32": "<i", "INT64": "<q"}


@dataclass(frozen=True)
class SpeechRequest:
    """Inputs of one utterance. None omits the tensor: the server's default applies."""

    text: str
    language: str | None = None
    speaker: str | None = None
    instruct: str | None = None
    voice: str | None = None
    ref_audio: NDArray[np.float32] | None = None  # mono, -1..1
    ref_sample_rate: int | None = None
    ref_text: str | None = None
    x_vector_only: bool | None = None
    operation: str | None = None  # on registered voices (qwen3_tts_client.voices) instead of speech
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    max_frames: int | None = None
    seed: int | None = None
    trim_silence: bool | None = None
    word_times: bool | None = None
    text_policy: str | None = None
    normalize_text: bool | None = None
    lexicon: str | None = None  # JSON


@dataclass(frozen=True)
class TextPiece:
    """Position of a request in an utterance whose text is sent in pieces."""

    sequence_id: int | str
    start: bool
    end: bool


@dataclass(frozen=True)
class AudioChunk:
    pcm: NDArray[np.int16]  # mono
    sample_rate: int | None  # Hz, on the first chunk only
    words: tuple[dict[str, Any], ...] = ()  # docs/api.md, Word times


@dataclass(frozen=True)
class VoiceList:
    """Response to a voice operation: the metadata of each voice."""

    voices: list[dict[str, Any]]


@dataclass(frozen=True)
class Error:
    message: str


@dataclass(frozen=True)
class Usage:
    frames: int  # of 80 ms
    text_tokens: int  # spoken
    prompt_rows: int
    withheld_samples: int  # leading silence that the server did not send


@dataclass(frozen=True)
class End:
    request_id: str = ""
    finish_reason: str | None = None  # docs/api.md, How an utterance ends; None from servers that do not say
    usage: Usage | None = None
    words: tuple[dict[str, Any], ...] = ()  # as in AudioChunk
    spoken_share: float | None = None  # of the text's tokens; only with word times


Event = AudioChunk | VoiceList | Error | End


def encode(
    request: SpeechRequest, model_name: str = MODEL_NAME, request_id: str = "", piece: TextPiece | None = None
) -> service_pb2.ModelInferRequest:
    """Encodes one request as protobuf. Raises ValueError for a number that does not fit its tensor."""
    message = service_pb2.ModelInferRequest(model_name=model_name, id=request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    if piece is not None:
        if isinstance(piece.sequence_id, str):
            message.parameters["sequence_id"].string_param = piece.sequence_id
        else:
            message.parameters["sequence_id"].int64_param = piece.sequence_id
        message.parameters["sequence_start"].bool_param = piece.start
        message.parameters["sequence_end"].bool_param = piece.end
    for name, datatype in INPUTS.items():
        value = getattr(request, name)
        if value is not None:
            _add_input(message, name, datatype, value)
    return message


def _add_input(message: service_pb2.ModelInferRequest, name: str, datatype: str, value: Any) -> None:
    shape = value.shape if isinstance(value, np.ndarray) else (1,)
    message.inputs.add(name=name, datatype=datatype, shape=shape)
    message.raw_input_contents.append(_raw(name, datatype, value))


def _raw(name: str, datatype: str, value: Any) -> bytes:
    if datatype == "BYTES":
        data: bytes = value.encode()
        return struct.pack("<I", len(data)) + data
    if isinstance(value, np.ndarray):
        return bytes(value.astype("<f4").tobytes())
    try:
        return struct.pack(_SCALAR_FORMATS[datatype], value)
    except (struct.error, OverflowError):
        raise ValueError(f"{name}: {value!r} does not fit {datatype}") from None


def decode(response: service_pb2.ModelStreamInferResponse) -> Iterator[Event]:
    """Yields the events of one response in order: audio, then End for the final response."""
    if response.error_message:
        yield Error(response.error_message)
        return
    result = response.infer_response
    tensors = {}
    for output, raw in zip(result.outputs, result.raw_output_contents, strict=True):
        if output.datatype != OUTPUTS.get(output.name):
            yield Error(f"output {output.name} is {output.datatype}, expected one of {OUTPUTS}")
            return
        tensors[output.name] = raw
    if tensors.get("waveform"):
        rate = tensors.get("sample_rate")
        yield AudioChunk(
            pcm=np.frombuffer(tensors["waveform"], dtype="<i2"),
            sample_rate=int.from_bytes(rate, "little") if rate else None,
            words=_words(tensors),
        )
    if "voices" in tensors:
        yield VoiceList([json.loads(voice) for voice in _strings(tensors["voices"])])
    if "triton_final_response" in result.parameters and result.parameters["triton_final_response"].bool_param:
        yield _end(result.id, tensors)


def _end(request_id: str, tensors: dict[str, bytes]) -> End:
    reason = next(_strings(tensors.get("finish_reason", b"")), None)
    counts = tensors.get("usage")
    return End(
        request_id,
        reason.decode() if reason is not None else None,
        Usage(*_COUNTS.unpack(counts)) if counts and len(counts) == _COUNTS.size else None,
        () if tensors.get("waveform") else _words(tensors),
        struct.unpack("<f", share)[0] if (share := tensors.get("spoken_share")) else None,
    )


def merged(told: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The words of an utterance, from all that its responses tell about them."""
    words: dict[int, dict[str, Any]] = {}
    for word in told:
        words.setdefault(word["index"], {}).update(word)
    return [word for _, word in sorted(words.items())]


def _words(tensors: dict[str, bytes]) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(word) for word in _strings(tensors.get("words", b"")))


def _strings(raw: bytes) -> Iterator[bytes]:
    """Elements of a BYTES tensor, each prefixed with its length."""
    start = 0
    while start < len(raw):
        (length,) = struct.unpack_from("<I", raw, start)
        start += 4 + length
        yield raw[start - length : start]
