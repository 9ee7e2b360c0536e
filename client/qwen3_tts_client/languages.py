"""Language codes of clients, and the names that checkpoints have for the languages."""

from qwen3_tts_client.checkpoints import LANGUAGES

_NAMES = {code: name for name, code in LANGUAGES.items()}


def language_of(code: str) -> str | None:
    """The value of `language` for a code of ISO 639-1, with or without a region: chinese for zh, zh-CN and zh_TW."""
    return _NAMES.get(code.partition("-")[0].partition("_")[0].lower())
