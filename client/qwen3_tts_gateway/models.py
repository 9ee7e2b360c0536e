"""Names of the models, and what each checkpoint is for."""

import re
from typing import Any, get_args

from qwen3_tts_client.checkpoints import LIST_SPEAKERS, LIST_VOICES, TaskType, task_of_refusal
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_gateway.backend import Backend
from qwen3_tts_gateway.config import Settings
from qwen3_tts_gateway.errors import APIError, from_speech

# Released checkpoints on a model hub or in a folder, and OpenAI's dated names such as tts-1-1106.
_CHECKPOINT = re.compile(r"(.*/)?Qwen3-TTS-.*-(CustomVoice|VoiceDesign|Base)", re.IGNORECASE)
_DATE = re.compile(r"-(\d{4}|\d{4}-\d\d-\d\d)$")
_TASKS = {task.lower(): task for task in get_args(TaskType)}


class Models:
    def __init__(self, settings: Settings, backend: Backend) -> None:
        self.default = settings.models[0]
        self._names = {name: name for name in settings.models}
        self._names |= {alias: self.default for alias in settings.model_aliases if alias not in self._names}
        self._backend = backend
        self._modes: dict[str, TaskType] = {}
        self._speakers: dict[str, tuple[str, ...]] = {}

    async def resolve(self, name: str | None) -> str:
        """The Triton model of a name. Raises APIError 404, and for a checkpoint 503 if no server answers."""
        if name is None:
            return self.default
        if known := self._names.get(name) or self._names.get(_DATE.sub("", name)):
            return known
        if checkpoint := _CHECKPOINT.fullmatch(name):
            return await self._serving(_TASKS[checkpoint[2].lower()], name)
        raise self._unknown(name)

    async def mode(self, model: str) -> TaskType:
        """What the model's checkpoint is for. Raises SpeechError."""
        if model not in self._modes:
            self._modes[model] = await self._ask(model)
        return self._modes[model]

    async def speakers(self, model: str) -> tuple[str, ...]:
        """Speakers of the model's CustomVoice checkpoint. Raises SpeechError."""
        if model not in self._speakers:
            found = await self._backend.operate(LIST_SPEAKERS, model)
            self._speakers[model] = tuple(speaker["name"] for speaker in found)
        return self._speakers[model]

    def listing(self) -> list[dict[str, Any]]:
        return [describe(name, model) for name, model in self._names.items()]

    async def _serving(self, task: TaskType, name: str) -> str:
        """The first model whose checkpoint is for `task`. Raises APIError."""
        failure = self._unknown(name)
        for model in dict.fromkeys(self._names.values()):
            try:
                if await self.mode(model) == task:
                    return model
            except SpeechError as error:
                failure = from_speech(error)
        raise failure

    def _unknown(self, name: str) -> APIError:
        return APIError(404, f"model: {name!r}: one of {', '.join(self._names)}", "model", "model_not_found")

    async def _ask(self, model: str) -> TaskType:
        try:
            await self._backend.operate(LIST_VOICES, model)
        except SpeechError as error:
            return task_of_refusal(error)
        return "Base"


def describe(name: str, model: str) -> dict[str, Any]:
    """`root` is the Triton model that a name stands for, as in vLLM; Open WebUI shows `name`."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "qwen", "root": model, "name": name}
