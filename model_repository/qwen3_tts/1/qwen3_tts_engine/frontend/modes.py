"""The modes of the checkpoint types, and the request fields of each mode."""

from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.request import InvalidRequest, SpeechOptions

VOICE_FIELDS = ("voice", "ref_audio", "ref_sample_rate", "ref_text", "x_vector_only")
# Display name, fields that select the voice and how to use them, by checkpoint type.
MODES = {
    "custom_voice": ("CustomVoice", ("speaker", "instruct"), "speaker, and instruct for its style"),
    "voice_design": ("VoiceDesign", ("instruct",), "instruct, which describes the voice"),
    "base": ("Base voice clone", VOICE_FIELDS, "voice, or ref_audio with ref_sample_rate and ref_text"),
}
ALL_FIELDS = ("speaker", "instruct", *VOICE_FIELDS)


def describe(model: ModelConfig) -> str:
    """The checkpoint's mode and its fields, for error messages."""
    mode, _, use = MODES[model.tts_model_type]
    return f"this checkpoint is for {mode} and takes {use}"


def check_mode(model: ModelConfig, request: SpeechOptions) -> None:
    """Raises InvalidRequest for a field of another mode and for a missing field of the checkpoint's mode."""
    _, fields, _ = MODES[model.tts_model_type]
    for name in ALL_FIELDS:
        value = getattr(request, name)
        if name not in fields and value is not None and value is not False:
            raise InvalidRequest(name, value, describe(model))
    if model.tts_model_type == "voice_design" and request.instruct is None:
        raise InvalidRequest("instruct", None, "required: it describes the voice")
    if model.tts_model_type == "base":
        _check_clone(request)


def _check_clone(request: SpeechOptions) -> None:
    if request.voice is not None:
        for name in ("ref_audio", "ref_sample_rate", "ref_text"):
            if (value := getattr(request, name)) is not None:
                raise InvalidRequest(name, value, "not allowed with voice, which has its own reference")
    elif request.ref_audio is None:
        raise InvalidRequest("voice", None, "required: the name of a registered voice, or ref_audio to clone one")
