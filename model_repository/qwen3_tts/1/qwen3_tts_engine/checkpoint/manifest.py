"""The manifest of an exported model: model.json beside its model file."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from qwen3_tts_engine.checkpoint.configs import CheckpointError, read_config

MANIFEST = "model.json"
PLAN = "model.plan"
FormName = Literal["onnx", "tensorrt", "python"]
# Version of code2wav's contract (codec/contract.py); 3 keeps states in rows. Other versions are exported again.
CODEC_CONTRACT = 3


class EngineFacts(BaseModel):
    """The build environment of a TensorRT plan, which runs in no other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: str  # the Python package: tensorrt, or one of TensorRT for RTX
    version: str
    gpu: str | None  # None when built ahead of time, without one
    compute_capability: str | None
    strongly_typed: bool
    plugin: bool  # whether its layer is the project's plugin
    level: int
    layers: int
    size: int  # bytes
    build_seconds: float
    profiles: list[dict[str, list[list[int]]]]  # smallest, most common and largest shape of each input

    def __str__(self) -> str:
        name, (smallest, *_) = next(iter(self.profiles[0].items()))
        largest = self.profiles[-1][name][-1]
        count = f" in {len(self.profiles)} profiles" if len(self.profiles) > 1 else ""
        typed = "strongly typed" if self.strongly_typed else "weakly typed"
        made = f"{self.library} {self.version} for {self.gpu or 'any GPU'}, level {self.level}"
        shapes = f"{name} {smallest} to {largest}{count}"
        layers = "the plugin" if self.plugin else f"{self.layers} layers"
        return f"{made}: {shapes}, {typed}, {self.size / 1e6:.0f} MB, {layers}, {self.build_seconds:.0f} s"


class Manifest(BaseModel):
    """Written by `python -m export` once the model file is verified, read by the talker when it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: FormName
    opset: int | None  # of the graph; None for forms without a graph
    torch: str
    onnx: str
    commit: str | None
    engine: EngineFacts | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest in a version folder; raises CheckpointError naming the file and every invalid field."""
        path = folder / MANIFEST
        if not path.is_file():
            raise CheckpointError(f"{path}: missing; `python -m export` of the checkpoint writes it beside the model")
        try:
            return read_config(path, cls)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; run `python -m export` again") from None

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


class CodecManifest(Manifest):
    """The manifest of code2wav."""

    state_size: int = Field(gt=0)
    state_dtype: Literal["FP32", "FP16"]
    codec_digest: str  # Checkpoint.codec_digest
    chunk_frames: list[int]  # verified chunk lengths
    sample_rate: int = Field(gt=0)
    contract: int = Field(ge=CODEC_CONTRACT, le=CODEC_CONTRACT)


class EncoderManifest(Manifest):
    """The manifest of a reference encoder."""

    digest: str  # of its weights: Checkpoint.speaker_digest or Checkpoint.codec_digest
    output_size: int = Field(gt=0)  # elements of the x-vector, or codebooks


def is_plan(folder: Path) -> bool:
    """Whether code2wav in a version folder is a TensorRT plan; False where its manifest is unreadable."""
    try:
        return CodecManifest.read(folder).form == "tensorrt"
    except CheckpointError:
        return False
