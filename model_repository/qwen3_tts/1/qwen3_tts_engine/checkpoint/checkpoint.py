"""A released Qwen3-TTS checkpoint: files, configuration, tensors."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from qwen3_tts_engine.checkpoint.configs import (
    AdapterConfig,
    CheckpointError,
    GenerationConfig,
    ModelConfig,
    SpeechTokenizerConfig,
    read_config,
)
from qwen3_tts_engine.checkpoint.tensor_shapes import TensorShapes
from qwen3_tts_engine.checkpoint.weight_files import index_of, open_weights, weight_files

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
SPEECH_TOKENIZER = "speech_tokenizer"
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
WHOLE_TOKENIZER = "tokenizer.json"
ADAPTER_CONFIG = "adapter_config.json"
# Samples of each file of weights; the first is the beginning of its header.
SAMPLES, SAMPLE_BYTES = 256, 4096


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
        checkpoint._refuse_adapter()
        for relative in (*checkpoint.tokenizer_files, WEIGHTS, f"{SPEECH_TOKENIZER}/{WEIGHTS}"):
            checkpoint.path(relative)
        _ = checkpoint.config, checkpoint.generation, checkpoint.speech_tokenizer
        return checkpoint

    def path(self, relative: str) -> Path:
        """The file at `relative`, or the index of its shards; raises CheckpointError when both are missing."""
        path = self.folder / relative
        for file in (path, index_of(path)):
            if file.is_file():
                return file
        raise CheckpointError(f"{path}: missing from the checkpoint")

    @property
    def tokenizer_files(self) -> tuple[str, ...]:
        """The released files, or the one file that newer versions of transformers write in their place."""
        is_released = all((self.folder / name).is_file() for name in TOKENIZER_FILES)
        has_whole = (self.folder / WHOLE_TOKENIZER).is_file()
        return (WHOLE_TOKENIZER,) if has_whole and not is_released else TOKENIZER_FILES

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
        digest = hashlib.sha256()
        for path in weight_files(self.path(f"{SPEECH_TOKENIZER}/{WEIGHTS}")):
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
        return digest.hexdigest()

    @cached_property
    def talker_digest(self) -> str:
        """SHA-256 of samples of the talker's weights, since to hash all of them takes seconds."""
        digest = hashlib.sha256()
        for path in weight_files(self.path(WEIGHTS)):
            with path.open("rb") as file:
                size = path.stat().st_size
                for position in range(0, size, max(1, size // SAMPLES)):
                    file.seek(position)
                    digest.update(file.read(SAMPLE_BYTES))
        return digest.hexdigest()

    @cached_property
    def speaker_digest(self) -> str:
        """SHA-256 of the speaker encoder's weights in a Base checkpoint."""
        digest = hashlib.sha256()
        with open_weights(self.path(WEIGHTS)) as files:
            for name in sorted(name for name in files if name.startswith("speaker_encoder.")):
                digest.update(name.encode())
                digest.update(files[name].get_tensor(name).contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _refuse_adapter(self) -> None:
        path, weights = self.folder / ADAPTER_CONFIG, self.folder / WEIGHTS
        if path.is_file() and not weights.is_file() and not index_of(weights).is_file():
            base = read_config(path, AdapterConfig).base_model_name_or_path or "its base model"
            remedy = f"merge it into {base} (PEFT's merge_and_unload) and give the folder of the merged checkpoint"
            raise CheckpointError(f"{self.folder}: a LoRA adapter, not a checkpoint: {remedy}")


def load_tensors(path: Path, shapes: TensorShapes) -> dict[str, torch.Tensor]:
    """Load the named tensors in their stored dtype.

    Raises CheckpointError naming the file, the tensor, and both shapes, before any tensor is read.
    """
    with open_weights(path) as files:
        for name, shape in shapes.items():
            if name not in files:
                raise CheckpointError(f"{path}: tensor {name} is missing (expected shape {list(shape)})")
            found = files[name].get_slice(name).get_shape()
            if list(found) != list(shape):
                raise CheckpointError(f"{path}: tensor {name} has shape {list(found)}, config.json says {list(shape)}")
        return {name: files[name].get_tensor(name) for name in shapes}


def _download(name: str, revision: str | None) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(f"checkpoint {name!r}: not a folder, and not available from the hub: {error}") from None
