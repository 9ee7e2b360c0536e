"""Metadata of a registered voice."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from qwen3_tts_engine.request import InvalidRequest


@dataclass(frozen=True)
class Origin:
    """The models that a voice was made with; it is valid only for the same ones."""

    hidden_size: int
    speaker_digest: str
    codec_digest: str


@dataclass(frozen=True)
class VoiceRecord:
    """A row of the table. `ref_text` is None for an x-vector voice; `file` names its arrays and is never used again."""

    id: int
    name: str
    hidden_size: int
    speaker_digest: str
    codec_digest: str
    ref_text: str | None
    reference_seconds: float
    created: float
    file: str
    num_bytes: int

    def check_origin(self, origin: Origin) -> None:
        """Raises InvalidRequest when the voice was made for another model."""
        if self.hidden_size != origin.hidden_size:
            sizes = f"hidden size {self.hidden_size}, this model's has {origin.hidden_size}"
            raise InvalidRequest("voice", self.name, f"made for a talker of {sizes}: register it with this model")
        for name in ("speaker_digest", "codec_digest"):
            if getattr(self, name) != getattr(origin, name):
                part = "speaker encoder" if name == "speaker_digest" else "codec"
                raise InvalidRequest("voice", self.name, f"made with another {part}: register it with this model")

    def public(self) -> str:
        """The fields that callers see, as JSON."""
        public = {name: asdict(self)[name] for name in ("name", "ref_text", "reference_seconds", "hidden_size")}
        created = datetime.fromtimestamp(self.created, UTC).isoformat(timespec="seconds")
        return json.dumps({**public, "x_vector_only": self.ref_text is None, "created": created}, ensure_ascii=False)
