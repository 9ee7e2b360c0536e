"""Messages of Cartesia's clients."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qwen3_tts_gateway.errors import BODY_FIELDS, APIError
from qwen3_tts_gateway.schema import FormatName, SpeechBody, SpeechOptions, parse

ENCODINGS: dict[str, FormatName] = {"pcm_s16le": "pcm", "pcm_mulaw": "mulaw", "pcm_alaw": "alaw"}
# Cartesia's models, which stand for the default model.
MODEL_PREFIX = "sonic"
# Tensor to field.
FIELDS = BODY_FIELDS | {"text": "transcript", "word_times": "add_timestamps"}


class Voice(BaseModel):
    mode: Literal["id"] = "id"
    id: str | None = None


class OutputFormat(BaseModel):
    container: Literal["raw"] = "raw"
    encoding: Literal["pcm_s16le", "pcm_mulaw", "pcm_alaw"] = "pcm_s16le"
    sample_rate: int | None = None


class GenerationConfig(BaseModel):
    speed: float | None = None


class Generation(BaseModel):
    """A piece of the text of a context. The first one of a context has its options."""

    model_config = ConfigDict(extra="ignore")

    context_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    transcript: str = ""
    is_continued: bool = Field(False, alias="continue")
    cancel: bool = False
    max_buffer_delay_ms: int | None = None
    model_id: str | None = None
    voice: Voice = Voice()
    output_format: OutputFormat = OutputFormat()
    language: str | None = None
    add_timestamps: bool = False
    generation_config: GenerationConfig | None = None

    @property
    def is_buffered(self) -> bool:
        """Whether transcripts are pieces of one text; otherwise each is a text of its own."""
        return self.max_buffer_delay_ms != 0

    def options(self) -> SpeechOptions:
        """Raises APIError."""
        options: SpeechOptions = parse(SpeechOptions, self._fields())
        return options

    def body(self) -> "CartesiaBody":
        """The transcript as a whole text. Raises APIError."""
        if not self.transcript:
            raise APIError(400, "transcript: required, a text", "transcript", "invalid_value")
        if self.add_timestamps:
            raise APIError(400, "add_timestamps: requires /tts/websocket", "add_timestamps", "invalid_value")
        body: CartesiaBody = parse(CartesiaBody, self._fields() | {"input": self.transcript})
        return body

    def _fields(self) -> dict[str, Any]:
        is_foreign = self.model_id is None or self.model_id.startswith(MODEL_PREFIX)
        return {
            "model": None if is_foreign else self.model_id,
            "voice": self.voice.id,
            "response_format": ENCODINGS[self.output_format.encoding],
            "sample_rate": self.output_format.sample_rate,
            "language": self.language,
            "speed": self.generation_config and self.generation_config.speed,
            "timestamp_granularities": ["word"] if self.add_timestamps else None,
        }


class CartesiaBody(SpeechBody):
    text_field: ClassVar[str] = "transcript"

    @property
    def tensor_fields(self) -> dict[str, str]:
        return FIELDS


def parse_generation(message: object) -> Generation:
    """Raises APIError that names the first wrong field."""
    try:
        return Generation.model_validate(message)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or None
        reason = "must be an object" if first["type"] == "model_type" else first["msg"]
        raise APIError(400, f"{field or 'message'}: {reason}", field, "invalid_value") from None
