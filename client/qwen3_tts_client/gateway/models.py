"""Names of the models, and what each checkpoint is for."""

from typing import Any

from qwen3_tts_client.checkpoints import LIST_VOICES, TaskType, task_of_refusal
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.gateway.backend import Backend
from qwen3_tts_client.gateway.config import Settings
from qwen3_tts_client.gateway.errors import APIError


class Models:
    def __init__(self, settings: Settings, backend: Backend) -> None:
        self.default = settings.models[0]
        self._names = {name: name for name in settings.models}
        self._names |= {alias: self.default for alias in settings.model_aliases if alias not in self._names}
        self._backend = backend
        self._modes: dict[str, TaskType] = {}

    def resolve(self, name: str | None) -> str:
        """The Triton model of a name. Raises APIError 404."""
        if name is None:
            return self.default
        if name not in self._names:
            known = ", ".join(self._names)
            raise APIError(404, f"model: {name!r}: one of {known}", "model", "model_not_found")
        return self._names[name]

    async def mode(self, model: str) -> TaskType:
        """What the model's checkpoint is for. Raises SpeechError."""
        if model not in self._modes:
            self._modes[model] = await self._ask(model)
        return self._modes[model]

    def listing(self) -> list[dict[str, Any]]:
        """`root` is the Triton model that a name stands for, as in vLLM."""
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": "qwen", "root": model}
            for name, model in self._names.items()
        ]

    async def _ask(self, model: str) -> TaskType:
        try:
            await self._backend.operate(LIST_VOICES, model)
        except SpeechError as error:
            return task_of_refusal(error)
        return "Base"
