"""Request schema, sampling parameters and errors."""

import math
import secrets
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qwen3_tts_engine.checkpoint.configs import GenerationConfig, RepetitionPenalty, Temperature, TopP
from qwen3_tts_engine.config import TextPolicy
from qwen3_tts_engine.voice import Voice

# Lower temperatures make logits overflow.
MIN_TEMPERATURE = 1e-5
RANDOM_SEED = -1
# Characters of an invalid value that an error quotes.
MAX_QUOTED = 40
LIST_SPEAKERS: Literal["list_speakers"] = "list_speakers"
SEQUENCE_ID = "sequence_id"
SequenceId = int | str
VoiceOperationName = Literal["register_voice", "list_voices", "delete_voice", "list_speakers"]


class Outcome(Enum):
    """Outcome of a request; the values are the `outcome` label of the request counter."""

    OK = "ok"
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"
    CANCELLED = "cancelled"
    ERROR = "error"


class RequestError(Exception):
    """Ends a request; the message gives the reason."""

    outcome = Outcome.ERROR

    def __reduce__(self) -> tuple[Any, ...]:
        # Also pickles subclasses with other arguments: the engine may be another process.
        return _restore, (type(self), str(self))


def _restore(kind: type[RequestError], message: str) -> RequestError:
    return kind.__new__(kind, message)


class InvalidRequest(RequestError):
    outcome = Outcome.INVALID

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {quoted(value)}: {allowed}")
        self.field = field


class Unavailable(RequestError):
    outcome = Outcome.UNAVAILABLE


class ServerStarting(Unavailable):
    """Triton is still loading models; until all are loaded it refuses calls between them."""


class Cancelled(RequestError):
    outcome = Outcome.CANCELLED


@dataclass(frozen=True)
class SequencePosition:
    """A request's position in its sequence."""

    sequence_id: SequenceId
    start: bool
    last: bool


class Sampling(BaseModel):
    """How codebook 0 (talker) and codebooks 1..15 (code predictor) are drawn (docs/model.md, Sampling).

    A temperature is 0, which is greedy, or at least MIN_TEMPERATURE; a top_k of 0 keeps the whole vocabulary.
    """

    model_config = ConfigDict(frozen=True)

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    predictor_temperature: float
    predictor_top_k: int
    predictor_top_p: float
    seed: int

    @classmethod
    def from_defaults(cls, defaults: GenerationConfig, options: "SamplingOptions") -> "Sampling":
        """Request options override the checkpoint's defaults; a temperature below 1e-5 makes both stages greedy."""
        requested = options.temperature
        greedy = requested is not None and requested < MIN_TEMPERATURE
        temperature = defaults.temperature if defaults.do_sample else 0.0
        predictor_temperature = defaults.subtalker_temperature if defaults.subtalker_dosample and not greedy else 0.0
        return cls(
            temperature=_or_greedy(temperature if requested is None else requested),
            top_k=defaults.top_k if options.top_k is None else max(0, options.top_k),
            top_p=defaults.top_p if options.top_p is None else options.top_p,
            repetition_penalty=options.repetition_penalty or defaults.repetition_penalty,
            predictor_temperature=_or_greedy(predictor_temperature),
            predictor_top_k=defaults.subtalker_top_k,
            predictor_top_p=defaults.subtalker_top_p,
            seed=secrets.randbits(63) if options.seed is None or options.seed == RANDOM_SEED else options.seed,
        )


class SamplingOptions(BaseModel):
    """The sampling fields of a request; None selects the default of the checkpoint's generation_config.json.

    As in other servers, a top_k of -1 keeps the whole vocabulary and a seed of -1 is random.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    temperature: Temperature | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    top_p: TopP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Annotated[int, Field(ge=RANDOM_SEED, lt=2**63)] | None = None


class VoiceReference(BaseModel):
    """A registered voice, or a recording, float32 [samples], with its rate in Hz and its transcript.

    `x_vector_only` uses only the recording's x-vector and requires no transcript.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    voice: str | None = None
    ref_audio: np.ndarray | None = None
    ref_sample_rate: int | None = None
    ref_text: str | None = None
    x_vector_only: bool = False

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Validate named fields; raises InvalidRequest for the first invalid one."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            value = None if first["type"] == "missing" else first["input"]
            raise InvalidRequest(str(first["loc"][0]), value, first["msg"]) from None


class SpeechOptions(SamplingOptions, VoiceReference):
    """All options of an utterance except its text. `max_frames` caps it (a frame is 80 ms); None derives the cap from
    the text. `trim_silence`, `text_policy` and `normalize_text` of None select the server's setting. `lexicon` is a
    JSON object. `word_times` asks when words begin and end. `cloned` is the resolved voice (`voices.service.Voices`).
    """

    language: str = "auto"
    speaker: str | None = None
    instruct: str | None = None
    cloned: Voice | None = None
    max_frames: Annotated[int, Field(ge=1)] | None = None
    trim_silence: bool | None = None
    word_times: bool = False
    text_policy: TextPolicy | None = None
    normalize_text: bool | None = None
    lexicon: str | None = None

    def trims(self, default: bool) -> bool:
        return default if self.trim_silence is None else self.trim_silence

    def in_voice(self, voice: Voice) -> Self:
        """The same request with its resolved voice."""
        return self.model_copy(update={"cloned": voice})


class SynthesisRequest(SpeechOptions):
    """One utterance to speak."""

    text: str


class VoiceOperation(VoiceReference):
    """An operation on the registered voices; unused fields are ignored."""

    operation: VoiceOperationName


def _or_greedy(temperature: float) -> float:
    return temperature if temperature >= MIN_TEMPERATURE else 0.0


def quoted(value: object) -> str:
    """A value for an error message, truncated to MAX_QUOTED characters."""
    if isinstance(value, np.ndarray):
        return f"{value.size} samples"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.7g}"
    # Truncated before repr, which takes a second per 100 MB.
    if isinstance(value, str | bytes) and len(value) > MAX_QUOTED:
        return f"{value[:MAX_QUOTED]!r}… ({len(value)} {'bytes' if isinstance(value, bytes) else 'characters'})"
    return repr(value)
