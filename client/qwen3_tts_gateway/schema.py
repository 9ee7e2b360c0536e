"""Body of POST /v1/audio/speech: OpenAI's fields and those of vllm-omni."""

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from qwen3_tts_client.checkpoints import TaskType
from qwen3_tts_client.languages import language_of
from qwen3_tts_gateway.audio.formats import FORMATS
from qwen3_tts_gateway.errors import BODY_FIELDS, APIError

FormatName = Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "mulaw", "alaw"]
# JSON with the audio as WAV and its words; the name is that of OpenAI's transcriptions.
VERBOSE_JSON = "verbose_json"
# A name, or an object as in OpenAI's SDK.
VOICE_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        {"type": "null"},
    ]
}
assert set(get_args(FormatName)) == set(FORMATS)


class SpeechOptions(BaseModel):
    """How to speak. Unknown fields are ignored, as OpenAI's extensions differ between servers."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    voice: Annotated[str | None, WithJsonSchema(VOICE_SCHEMA)] = Field(
        None, max_length=256, validation_alias=AliasChoices("voice", "speaker")
    )
    instructions: str | None = None
    response_format: FormatName = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4, allow_inf_nan=False)] | None = None
    sample_rate: int | None = None
    task_type: TaskType | None = None
    language: str | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    consent: bool | str | None = None
    max_new_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    seed: int | None = Field(None, ge=-1, lt=1 << 63)
    temperature: float | None = Field(None, allow_inf_nan=False)
    top_p: float | None = Field(None, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, lt=1 << 31)
    repetition_penalty: float | None = Field(None, allow_inf_nan=False)
    text_policy: str | None = None
    normalize_text: bool | None = None
    lexicon: dict[str, str] | None = None
    timestamp_granularities: list[Literal["word"]] | None = None
    word_timestamps: bool = False

    @property
    def audio_format(self) -> FormatName:
        return self.response_format

    @property
    def words_field(self) -> str | None:
        """The field that asks for words."""
        if self.timestamp_granularities:
            return "timestamp_granularities"
        return "word_timestamps" if self.word_timestamps else None

    @property
    def tensor_fields(self) -> dict[str, str]:
        """Tensor to field where the names differ."""
        return BODY_FIELDS | {"word_times": self.words_field or "word_times"}

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, fields: Any) -> Any:
        return (
            {name: value for name, value in fields.items() if value is not None} if isinstance(fields, dict) else fields
        )

    @field_validator("language")
    @classmethod
    def _language_name(cls, language: str | None) -> str | None:
        return language and (language_of(language) or language)

    @field_validator("seed")
    @classmethod
    def _random_seed(cls, seed: int | None) -> int | None:
        return None if seed == -1 else seed

    @field_validator("top_k")
    @classmethod
    def _whole_vocabulary(cls, top_k: int | None) -> int | None:
        return 0 if top_k == -1 else top_k

    @field_validator("voice", mode="before")
    @classmethod
    def _voice_id(cls, voice: Any) -> Any:
        return voice["id"] if isinstance(voice, dict) and "id" in voice else voice

    @field_validator("sample_rate", mode="after")
    @classmethod
    def _rate_of_format(cls, rate: int | None, info: Any) -> int | None:
        name = info.data.get("response_format", "mp3")
        rates = FORMATS["wav" if name == VERBOSE_JSON else name].rates
        if rate is not None and rate not in rates:
            raise ValueError(f"one of {', '.join(map(str, rates))} for this response_format")
        return rate


class SessionOptions(SpeechOptions):
    """session.config of the WebSocket, with vllm-omni's defaults."""

    response_format: FormatName = "wav"
    stream_audio: bool = False

    @property
    def has_audio_chunks(self) -> bool:
        """Whether audio is sent in JSON, beside the words that ended in it."""
        return self.words_field == "word_timestamps"

    def check_words(self) -> None:
        """Raises APIError for words that the messages cannot carry."""
        if self.has_audio_chunks and not (self.stream_audio and self.response_format == "pcm"):
            reason = "requires stream_audio = true and response_format = pcm; timestamp_granularities does not"
            raise APIError(400, f"word_timestamps: {reason}", "word_timestamps", "invalid_value")


class SpeechBody(SpeechOptions):
    text_field: ClassVar[str] = "input"  # in errors

    input: str = Field(min_length=1)
    response_format: FormatName | Literal["verbose_json"] = "mp3"  # type: ignore[assignment]
    stream: bool = False
    stream_format: Literal["audio", "sse"] | None = None

    @property
    def is_sse(self) -> bool:
        return self.stream_format == "sse" or (self.stream and self.stream_format is None)

    @property
    def is_whole(self) -> bool:
        """Whether the response is sent once all audio is there."""
        return self.is_verbose or (self.words_field is not None and not self.is_sse)

    @property
    def is_verbose(self) -> bool:
        return self.response_format == VERBOSE_JSON

    @property
    def audio_format(self) -> FormatName:
        return "wav" if self.response_format == "verbose_json" else self.response_format

    @property
    def words_field(self) -> str | None:
        return super().words_field or ("response_format" if self.is_verbose else None)

    def check_words(self) -> None:
        """Raises APIError for words that the response cannot carry."""
        if self.is_verbose and (self.is_sse or self.stream_format):
            raise APIError(400, "response_format: 'verbose_json': not with stream_format or stream", "response_format")
        if self.words_field is None or self.is_sse or self.is_verbose:
            return
        if self.timestamp_granularities or self.stream_format:
            reason = "requires stream_format = sse or response_format = verbose_json"
            raise APIError(400, f"{self.words_field}: {reason}", self.words_field, "invalid_value")


class BatchItem(SpeechOptions):
    input: str = Field(min_length=1)
    response_format: FormatName = "wav"


class BatchBody(SpeechOptions):
    """vllm-omni's batch: the fields beside `items` are defaults of all items."""

    response_format: FormatName = "wav"
    items: list[BatchItem] = Field(min_length=1)

    def merged(self) -> list[dict[str, Any]]:
        """Fields of each item."""
        defaults = self.model_dump(exclude_unset=True, exclude={"items"})
        return [defaults | item.model_dump(exclude_unset=True) for item in self.items]


def parse(kind: type[SpeechOptions], value: Any) -> Any:
    """Raises APIError that names the first wrong field."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise invalid_field(error) from None


def invalid_field(error: ValidationError) -> APIError:
    first = error.errors()[0]
    # A union adds its members to the location.
    depth = 3 if first["loc"][:1] == ("items",) else 1
    field = ".".join(map(str, first["loc"][:depth])) or None
    is_object = first["type"] == "model_type"  # pydantic's message names the class
    reason = "must be an object" if is_object else first["msg"].removeprefix("Value error, ")
    return APIError(400, f"{field or 'body'}: {reason}", field, "invalid_value")
