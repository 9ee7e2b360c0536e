"""The talker's attention heads that follow the text: a file for each checkpoint, beside the talker's model.py."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field

from qwen3_tts_engine.checkpoint.configs import CheckpointError, read_config

if TYPE_CHECKING:
    # Imports PyTorch, which the process that Triton calls does without.
    from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint

TextLayout = Literal["full", "streaming"]
LAYOUTS: tuple[TextLayout, ...] = get_args(TextLayout)


def alignment_file(folder: Path, talker_digest: str) -> Path:
    """The file in a version folder, which models of several checkpoints may share (scripts/server/add_model.py)."""
    return folder / f"alignment-{talker_digest[:12]}.json"


class AlignmentHeads(BaseModel):
    """The heads of a text layout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heads: list[tuple[int, int]] = Field(min_length=1)  # layer and head
    advance: list[float]  # probability that a frame moves the position by 0, 1, 2, ... tokens
    scores: dict[str, float]  # mean score of the heads by language, 0 to 1 (docs/word-times.md)


class Alignment(BaseModel):
    """Written by `python -m export`; a layout that is missing has no word times."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    talker_digest: str
    layouts: dict[TextLayout, AlignmentHeads]

    @classmethod
    def read(cls, folder: Path, checkpoint: "Checkpoint") -> Self | None:
        """This checkpoint's heads, if they have been chosen in a version folder; raises CheckpointError."""
        path = alignment_file(folder, checkpoint.talker_digest)
        if not path.is_file():
            return None
        try:
            found = read_config(path, cls)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; run `python -m export` again") from None
        return found if found.talker_digest == checkpoint.talker_digest else None

    def write(self, folder: Path) -> None:
        path = alignment_file(folder, self.talker_digest)
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
