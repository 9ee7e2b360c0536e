"""A checkpoint that cannot be used is refused with the file and the field in the message."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.codec import CodecStep
from qwen3_tts_engine.checkpoint import TOKENIZER_FILES, Checkpoint, CheckpointError, load_tensors
from qwen3_tts_engine.weights import talker_shapes


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint whose files may be replaced: each one is a link to the session's."""
    for source in tiny_checkpoint.rglob("*"):
        if source.is_file():
            link = tmp_path / source.relative_to(tiny_checkpoint)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(source)
    return tmp_path


def rewrite(path: Path, change: dict[str, Any], *keys: str) -> None:
    """Replace a JSON file by one in which the object under `keys` has other values; None takes a field out."""
    content = json.loads(path.read_text())
    part = content
    for key in keys:
        part = part[key]
    part |= change
    for key in [key for key, value in part.items() if value is None and key in change]:
        del part[key]
    path.unlink()
    path.write_text(json.dumps(content))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        Checkpoint.open(str(folder))
    return str(refused.value)


def test_opens(tiny_checkpoint: Path) -> None:
    checkpoint = Checkpoint.open(str(tiny_checkpoint))
    assert checkpoint.config.tts_model_type == "custom_voice"
    assert checkpoint.config.talker_config.spk_is_dialect["eric"] == "sichuan_dialect"
    assert checkpoint.generation.max_new_tokens == 8192
    assert checkpoint.speech_tokenizer.decode_upsample_rate == 1920


@pytest.mark.parametrize(
    "name",
    [*TOKENIZER_FILES, "config.json", "generation_config.json", "model.safetensors"]
    + [f"speech_tokenizer/{name}" for name in ("config.json", "model.safetensors")],
)
def test_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert refusal(folder) == f"{folder / name}: missing from the checkpoint"


def test_neither_folder_nor_hub_id(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        Checkpoint.open(str(tmp_path / "nowhere"))


def test_broken_json(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").write_text('{"tts_model_type": ')
    assert refusal(folder).startswith(f"{folder / 'config.json'}: not JSON")


def test_missing_and_wrong_fields_are_all_named(folder: Path) -> None:
    rewrite(folder / "config.json", {"head_dim": None, "hidden_size": "wide"}, "talker_config")
    message = refusal(folder)
    assert message.startswith(f"{folder / 'config.json'}: ")
    assert "talker_config.head_dim: Field required" in message
    assert "talker_config.hidden_size" in message


def test_unknown_dialect(folder: Path) -> None:
    rewrite(folder / "config.json", {"eric": "elvish"}, "talker_config", "spk_is_dialect")
    assert "elvish" in refusal(folder)


def test_config_of_another_size(folder: Path) -> None:
    rewrite(folder / "config.json", {"intermediate_size": 512}, "talker_config")
    checkpoint = Checkpoint.open(str(folder))
    path = checkpoint.path("model.safetensors")
    with pytest.raises(CheckpointError) as refused:
        load_tensors(path, talker_shapes(checkpoint.config))
    assert str(path) in str(refused.value)
    assert "mlp.gate_proj.weight has shape [256, 128], config.json says [512, 128]" in str(refused.value)


def test_missing_tensor(folder: Path) -> None:
    path, name = folder / "speech_tokenizer" / "model.safetensors", "decoder.pre_conv.conv.bias"
    tensors = load_file(path)
    del tensors[name]
    path.unlink()
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as refused:
        CodecStep.from_checkpoint(Checkpoint.open(str(folder)))
    assert str(refused.value) == f"{path}: tensor {name} is missing (expected shape [64])"


def test_not_safetensors(folder: Path) -> None:
    path = folder / "speech_tokenizer" / "model.safetensors"
    path.unlink()
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        CodecStep.from_checkpoint(Checkpoint.open(str(folder)))


def test_tensors_keep_their_dtype(tiny_checkpoint: Path) -> None:
    checkpoint = Checkpoint.open(str(tiny_checkpoint))
    name = "talker.model.norm.weight"
    tensors = load_tensors(checkpoint.path("model.safetensors"), {name: (128,)})
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {name: torch.bfloat16}
