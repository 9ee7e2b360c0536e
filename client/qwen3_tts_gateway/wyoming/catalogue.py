"""The voices that Home Assistant lists, and what a chosen one is in a request."""

from dataclasses import dataclass
from typing import Any

from wyoming.info import Attribution, Info, TtsProgram, TtsVoice
from wyoming.tts import SynthesizeVoice

from qwen3_tts_client import __version__
from qwen3_tts_client.checkpoints import LANGUAGES, LIST_SPEAKERS, LIST_VOICES, TaskType, task_of_refusal
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.languages import language_of
from qwen3_tts_client.server import Server
from qwen3_tts_client.voices import operate

LIST_SECONDS = 10.0
QWEN = Attribution("Qwen", "https://github.com/QwenLM/Qwen3-TTS")
# The only voice of a VoiceDesign checkpoint.
DESIGNED = "designed"


@dataclass(frozen=True)
class Catalogue:
    task: TaskType
    voices: tuple[str, ...]

    @classmethod
    def ask(cls, server: Server) -> "Catalogue":
        """Raises SpeechError."""
        try:
            return cls("Base", _names(operate(server, LIST_VOICES, LIST_SECONDS)))
        except SpeechError as error:
            task = task_of_refusal(error)
        if task == "VoiceDesign":
            return cls(task, (DESIGNED,))
        return cls(task, _names(operate(server, LIST_SPEAKERS, LIST_SECONDS)))

    def info(self) -> Info:
        codes = list(LANGUAGES.values())
        voices = [TtsVoice(name, QWEN, True, _title(name), None, languages=codes) for name in self.voices]
        description = f"Qwen3-TTS {self.task}"
        program = TtsProgram(
            "qwen3-tts", QWEN, True, description, __version__, voices=voices, supports_synthesize_streaming=True
        )
        return Info(tts=[program])

    def fields(self, chosen: SynthesizeVoice | None, default: str | None) -> dict[str, Any]:
        """Fields of a SpeechRequest."""
        name = (chosen.name if chosen else None) or default or next(iter(self.voices), None)
        spoken = {"language": language_of((chosen.language if chosen else None) or "")}
        if self.task == "VoiceDesign":
            return spoken
        return spoken | {"speaker" if self.task == "CustomVoice" else "voice": name}


def _title(name: str) -> str:
    return name[:1].upper() + name[1:].replace("_", " ")


def _names(voices: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(voice["name"] for voice in voices)
