"""Language codes of requests."""

import re

AUTO = "auto"
# ISO 639-1 codes of the languages of released checkpoints.
NAMES = {
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "zh": "chinese",
}
# The language of a BCP-47 tag, before its script, region and variants; POSIX locales join them by an underscore.
TAG = re.compile(r"([a-z]{2})([-_][a-z0-9]{1,8})*")


def language_name(language: str) -> str:
    """The name of a code such as "en" or "zh-CN"; an empty one is AUTO, any other text is returned in lower case."""
    name = language.strip().lower() or AUTO
    tag = TAG.fullmatch(name)
    return NAMES.get(tag[1], name) if tag else name
