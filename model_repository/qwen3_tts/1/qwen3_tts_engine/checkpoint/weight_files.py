"""Weights in one safetensors file, or in shards with an index."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from qwen3_tts_engine.checkpoint.configs import CheckpointError, ReleasedConfig, read_config

INDEX = ".index.json"


class WeightIndex(ReleasedConfig):
    """model.safetensors.index.json."""

    weight_map: dict[str, str]


def index_of(path: Path) -> Path:
    """The index that stands for the safetensors file at `path` when that is sharded."""
    return path.with_name(path.name + INDEX)


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of `path`: itself, or an index's shards. Raises CheckpointError for a missing shard."""
    if not path.name.endswith(INDEX):
        return [path]
    files = [path.parent / name for name in sorted(set(read_config(path, WeightIndex).weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{file}: missing from the checkpoint, {path.name} names it")
    return files


@contextmanager
def open_weights(path: Path) -> Iterator[dict[str, Any]]:
    """The open safetensors file of each tensor, by the tensor's name. Raises CheckpointError for an unreadable file."""
    with ExitStack() as opened:
        holders: dict[str, Any] = {}
        for file in weight_files(path):
            try:
                holder = opened.enter_context(safe_open(file, framework="pt"))
            except SafetensorError as error:
                raise CheckpointError(f"{file}: not a readable safetensors file: {error}") from None
            holders |= dict.fromkeys(holder.keys(), holder)
        yield holders
