"""A released Qwen3-TTS checkpoint: files, configuration, tensors."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open

from qwen3_tts_engine.checkpoint.configs import (
    CheckpointError,
    GenerationConfig,
    ModelConfig,
    SpeechTokenizerConfig,
    read_config,
)
from qwen3_tts_engine.checkpoint.tensor_shapes import TensorShapes

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
SPEECH_TOKENIZER = "speech_tokenizer"
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder in the released layout (docs/model.md, Checkpoint files)."""

    folder: Path

    @classmethod
    def open(cls, name: str, revision: str | None = None) -> "Checkpoint":
        """Open a folder, or download a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice (kept in the hub's cache).

        Raises CheckpointError when the folder or the hub id is unavailable, or a file is missing or invalid.
        """
        folder = Path(name) if Path(name).is_dir() else _download(name, revision)
        checkpoint = cls(folder)
        for relative in (*TOKENIZER_FILES, WEIGHTS, f"{SPEECH_TOKENIZER}/{WEIGHTS}"):
            checkpoint.path(relative)
        _ = checkpoint.config, checkpoint.generation, checkpoint.speech_tokenizer
        return checkpoint

    def path(self, relative: str) -> Path:
        """The file at `relative`; raises CheckpointError when it is missing."""
        path = self.folder / relative
        if not path.is_file():
            raise CheckpointError(f"{path}: missing from the checkpoint")
        return path

    @cached_property
    def config(self) -> ModelConfig:
        return read_config(self.path(CONFIG), ModelConfig)

    @cached_property
    def generation(self) -> GenerationConfig:
        return read_config(self.path(GENERATION_CONFIG), GenerationConfig)

    @cached_property
    def speech_tokenizer(self) -> SpeechTokenizerConfig:
        return read_config(self.path(f"{SPEECH_TOKENIZER}/{CONFIG}"), SpeechTokenizerConfig)

    @cached_property
    def codec_digest(self) -> str:
        """SHA-256 of the speech tokenizer's weights; identifies the source of an exported codec."""
        with self.path(f"{SPEECH_TOKENIZER}/{WEIGHTS}").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @cached_property
    def speaker_digest(self) -> str:
        """SHA-256 of the speaker encoder's weights in a Base checkpoint."""
        digest = hashlib.sha256()
        with safe_open(self.path(WEIGHTS), framework="pt") as file:
            names = list(file.keys())
            for name in sorted(name for name in names if name.startswith("speaker_encoder.")):
                digest.update(name.encode())
                digest.update(file.get_tensor(name).contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def load_tensors(path: Path, shapes: TensorShapes) -> dict[str, torch.Tensor]:
    """Load the named tensors in their stored dtype.

    Raises CheckpointError naming the file, the tensor, and both shapes, before any tensor is read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            for name, shape in shapes.items():
                if name not in present:
                    raise CheckpointError(f"{path}: tensor {name} is missing (expected shape {list(shape)})")
                found = file.get_slice(name).get_shape()
                if list(found) != list(shape):
                    raise CheckpointError(
                        f"{path}: tensor {name} has shape {list(found)}, config.json says {list(shape)}"
                    )
            return {name: file.get_tensor(name) for name in shapes}
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a readable safetensors file: {error}") from None


def _download(name: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(f"checkpoint {name!r}: not a folder, and not available from the hub: {error}") from None
