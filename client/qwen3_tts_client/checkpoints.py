"""What the released checkpoints are for, and what they speak."""

import re
from typing import Literal

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SpeechRequest

TaskType = Literal["CustomVoice", "VoiceDesign", "Base"]
# Speakers of the released checkpoints; a fine-tuned one has others (LIST_SPEAKERS).
SPEAKERS = ("aiden", "dylan", "eric", "ono_anna", "ryan", "serena", "sohee", "uncle_fu", "vivian")
# Values of `language`, with their ISO 639-1 codes.
LANGUAGES = {
    "chinese": "zh",
    "english": "en",
    "french": "fr",
    "german": "de",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
}
LIST_VOICES = SpeechRequest("", operation="list_voices")
LIST_SPEAKERS = SpeechRequest("", operation="list_speakers")  # of a CustomVoice checkpoint
# Models other than Base refuse voice operations and say what they are for (docs/api.md, Errors).
_TASK = re.compile(r"this checkpoint is for (CustomVoice|VoiceDesign|Base)")


def task_of_refusal(error: SpeechError) -> TaskType:
    """The task of the checkpoint that refused LIST_VOICES. Raises `error` if it failed for another reason."""
    if error.outcome == "invalid" and (found := _TASK.search(str(error))):
        return found[1]  # type: ignore[return-value]
    raise error
