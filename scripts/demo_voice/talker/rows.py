"""The rows of an utterance in both layouts (docs/model.md, Prompt rows), and what each row says next."""

from typing import NamedTuple

import numpy as np

from scripts.demo_voice.codec.layers import Json
from scripts.demo_voice.sizes import VOICE_SPEAKERS
from scripts.demo_voice.tokenizer import SpokenIds

NONE, END = -1, -2


class Rows(NamedTuple):
    """Per row: text id, control id or NONE, number of its frame or NONE, and of the frame that it says, END or NONE."""

    text: np.ndarray
    control: np.ndarray
    frame: np.ndarray
    says: np.ndarray


# Text ids and control ids of the prompt, and the text ids that are fed later.
Prompt = tuple[list[int], list[int], list[int]]


class RowBuilder:
    def __init__(self, config: Json, ids: SpokenIds) -> None:
        self._config, self._role = config, ids.role
        self._pad, self._begin, self._end = (ids.control[f"tts_{name}_token_id"] for name in ("pad", "bos", "eos"))

    def rows(self, text: list[int], frames: int, voice: int, *, english: bool, streaming: bool) -> Rows:
        """`english`: the prompt names the language."""
        ids, control, trailing = self._prompt(text, voice, english, streaming)
        beside = (trailing + [self._pad] * frames)[:frames]
        numbers = list(range(frames))
        return Rows(
            np.array(ids + beside, np.int16),
            np.array(control + [NONE] * frames, np.int16),
            np.array([NONE] * len(ids) + numbers, np.int32),
            np.array([NONE] * (len(ids) - 1) + [*numbers, END], np.int32),
        )

    def _prompt(self, text: list[int], voice: int, english: bool, streaming: bool) -> Prompt:
        config, spoken = self._config, [*text, self._end]
        prefix = self._prefix(voice, english)
        ids = [*self._role, *[self._pad] * len(prefix), self._begin]
        control = [*[NONE] * len(self._role), *prefix, config["codec_pad_id"]]
        if streaming:
            return ids + spoken[:1], [*control, config["codec_bos_id"]], spoken[1:]
        control += [config["codec_pad_id"]] * len(spoken)
        return [*ids, *spoken, self._pad], [*control, config["codec_bos_id"]], []

    def _prefix(self, voice: int, english: bool) -> list[int]:
        config = self._config
        language = [config["codec_language_id"]["english"]] if english else []
        think = config["codec_think_id" if english else "codec_nothink_id"]
        speaker = config["spk_id"][VOICE_SPEAKERS[voice]]
        return [think, config["codec_think_bos_id"], *language, config["codec_think_eos_id"], speaker]
