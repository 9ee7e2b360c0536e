"""Checkpoints in the layouts of others."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def fine_tune(checkpoint: Path, folder: Path) -> Path:
    """A copy as the official fine-tuning script leaves it: one speaker, under the name that was given to it."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    config["talker_config"] |= {"spk_id": {"MyVoice": 3000}, "spk_is_dialect": {"MyVoice": False}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def shard(path: Path, count: int) -> None:
    """Replaces a safetensors file by shards and their index, as transformers writes them."""
    tensors = sorted(load_file(path).items())
    path.unlink()
    weight_map: dict[str, str] = {}
    for number in range(count):
        name = f"{path.stem}-{number + 1:05}-of-{count:05}.safetensors"
        part = dict(tensors[number::count])
        save_file(part, path.with_name(name))
        weight_map |= dict.fromkeys(part, name)
    path.with_name(f"{path.name}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
