"""Prompts of a benchmark."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.protocol import SpeechRequest, encode

DEFAULT_FILE = Path(__file__).parent / "prompts" / "everyday.jsonl"

# Fields allowed beside `id`: fields of SpeechRequest and their JSON types.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "language": str,
    "speaker": str,
    "instruct": str,
    "voice": str,
    "max_frames": int,
}


@dataclass(frozen=True)
class BenchPrompt:
    id: str
    fields: dict[str, Any]  # of SpeechRequest, `text` among them


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Reads JSON lines of {"id", "text", "language", ...}. Raises ClientError with the line number."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"prompt file {path}: {error}") from None
    prompts = [_prompt(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ClientError(f"prompt file {path}: no prompts")
    return prompts


def _prompt(place: str, line: str) -> BenchPrompt:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ClientError(f"{place}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ClientError(f"{place}: expected a JSON object")
    identifier = str(fields.pop("id", place))
    fields = {name: value for name, value in fields.items() if value is not None}
    if "text" not in fields:
        raise ClientError(f'{place}: the field "text" is missing')
    for name, value in fields.items():
        if name not in _FIELDS:
            raise ClientError(f'{place}: unknown field "{name}"; choose from id, {", ".join(_FIELDS)}')
        if not isinstance(value, _FIELDS[name]):
            raise ClientError(f'{place}: "{name}" is {value!r}')
    try:
        encode(SpeechRequest(**fields))
    except ValueError as error:
        raise ClientError(f"{place}: {error}") from None
    return BenchPrompt(identifier, fields)
