"""Converts the fields of a request to the tensors of the model."""

import json
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from qwen3_tts_client.checkpoints import SPEAKERS
from qwen3_tts_client.protocol import SpeechRequest, encode
from qwen3_tts_gateway.audio.reference import decode_reference
from qwen3_tts_gateway.config import Settings
from qwen3_tts_gateway.errors import APIError, from_message
from qwen3_tts_gateway.models import Models
from qwen3_tts_gateway.schema import SpeechOptions

_SAME_NAME = (
    "language", "ref_text", "seed", "temperature", "top_p", "top_k", "repetition_penalty", "text_policy",
    "normalize_text",
)  # fmt: skip


class RequestBuilder:
    def __init__(self, settings: Settings, models: Models, executor: Executor) -> None:
        self._settings = settings
        self._models = models
        self._executor = executor

    async def build(self, options: SpeechOptions, text: str, model: str) -> SpeechRequest:
        """Raises APIError for a field that is wrong or not allowed here, SpeechError if no server answers."""
        mode = await self._models.mode(model)
        if options.task_type not in (None, mode):
            raise APIError(400, f"task_type: {options.task_type!r}: this checkpoint is for {mode}", "task_type")
        fields: dict[str, Any] = {name: getattr(options, name) for name in _SAME_NAME}
        fields |= {"instruct": options.instructions or None, "max_frames": options.max_new_tokens}
        fields |= {"lexicon": json.dumps(options.lexicon) if options.lexicon else None}
        fields |= {"x_vector_only": options.x_vector_only_mode or None}
        fields |= {"word_times": True if options.words_field else None}
        fields |= await self._reference(options) if options.ref_audio else await self._voice(options.voice, model, mode)
        request = SpeechRequest(text, **fields)
        _check(lambda: encode(request))
        return request

    async def _voice(self, voice: str | None, model: str, mode: str) -> dict[str, str | None]:
        """VoiceDesign has no named voice, but OpenAI's clients always send one."""
        alias = self._settings.voice_aliases.get((voice or "").lower())
        match mode:
            case "CustomVoice":
                return {"speaker": await self._speaker(voice, alias, model)}
            case "Base":
                return {"voice": voice if alias in SPEAKERS else alias or voice}
        return {}

    async def _speaker(self, voice: str | None, alias: str | None, model: str) -> str:
        """A fine-tuned checkpoint may lack the speakers of aliases and the default: its first one replaces them."""
        if voice and not alias:
            return voice
        name, speakers = alias or self._settings.default_voice, await self._models.speakers(model)
        return name if name.lower() in map(str.lower, speakers) else speakers[0]

    async def _reference(self, options: SpeechOptions) -> dict[str, Any]:
        check_cloning(self._settings, options.consent)
        assert options.ref_audio is not None
        samples, rate = await decode_reference(options.ref_audio, self._executor)
        return {"ref_audio": samples, "ref_sample_rate": rate, "voice": None}


def check_cloning(settings: Settings, consent: object) -> None:
    """Raises APIError 403."""
    if settings.cloning == "off":
        raise APIError(403, "cloning of voices is switched off", code="cloning_disabled")
    if settings.cloning == "consent" and not consent:
        raise APIError(403, "consent: required: the speaker's consent to the clone", "consent", "consent_required")


def _check(encoded: Callable[[], object]) -> None:
    try:
        encoded()
    except ValueError as error:
        raise from_message(str(error)) from None


def check_length(characters: int, limit: int, field: str = "input") -> None:
    """Raises APIError 400."""
    if characters > limit:
        raise APIError(400, f"{field}: {characters} characters, at most {limit} are allowed", field, "string_too_long")


def is_unicode(text: str) -> bool:
    """JSON can hold half of a surrogate pair, which UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
