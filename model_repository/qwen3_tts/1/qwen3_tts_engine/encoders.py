"""The contract of the models that read a reference: names, tensors, limits, and what they were exported from.

Export, their Triton configurations, the talker's client of them and the tests all take these from here.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from qwen3_tts_engine.checkpoint import CheckpointError, read_config
from qwen3_tts_engine.code2wav import SAMPLES_PER_FRAME
from qwen3_tts_engine.manifest import MANIFEST, FormName

SPEAKER_ENCODER, CODEC_ENCODER = "speaker_encoder", "codec_encoder"
# speaker_encoder: log-mel float32 [frames of 256 samples, 128] -> x-vector float32 [talker hidden]
MEL, X_VECTOR = "mel", "x_vector"
# codec_encoder: audio float32 [frames, 1920], filled up with zeros behind num_samples int32 [1] -> int32 [frames, 16]
AUDIO, NUM_SAMPLES, CODES = "audio", "num_samples", "codes"

MAX_SECONDS = 120
MAX_FRAMES = MAX_SECONDS * 24000 // SAMPLES_PER_FRAME


class EncoderManifest(BaseModel):
    """Written by `python -m export` once the model file is verified, read by the talker when it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: FormName
    digest: str
    """Of the weights: Checkpoint.speaker_digest or Checkpoint.codec_digest."""
    output_size: int = Field(gt=0)
    """Elements of the x-vector, or codebooks."""
    opset: int
    torch: str
    onnx: str
    commit: str | None

    @classmethod
    def read(cls, folder: Path) -> "EncoderManifest":
        """The manifest in a version folder; raises CheckpointError naming the file, and every wrong field."""
        path = folder / MANIFEST
        if not path.is_file():
            raise CheckpointError(f"{path}: missing; `python -m export` makes this model of a Base checkpoint")
        return read_config(path, cls)

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def check_encoder(repository: Path, name: str, digest: str, source: Path) -> None:
    """Raises CheckpointError, naming file and command, unless model `name` was exported from these weights."""
    folder = repository / name / "1"
    if EncoderManifest.read(folder).digest != digest:
        raise CheckpointError(f"{folder / MANIFEST}: made from another checkpoint than {source}: export this one")
