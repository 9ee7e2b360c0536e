"""An unusable checkpoint is rejected with an error that names the file and the field."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.checkpoint import TOKENIZER_FILES, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.frontend.tokenizer import TextTokenizer
from qwen3_tts_engine.request import InvalidRequest
from tests.conftest import CheckpointOf
from tests.fakes.checkpoints import shard


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint whose files may be replaced: each one is a symlink to the session's file."""
    for source in tiny_checkpoint.rglob("*"):
        if source.is_file():
            link = tmp_path / source.relative_to(tiny_checkpoint)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(source)
    return tmp_path


def rewrite(path: Path, change: dict[str, Any], *keys: str) -> None:
    """Rewrite a JSON file with `change` merged into the object under `keys`; None removes a field."""
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


def test_opens_a_checkpoint(tiny_checkpoint: Path) -> None:
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
def test_names_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert refusal(folder) == f"{folder / name}: missing from the checkpoint"


def test_rejects_a_path_that_is_neither_a_folder_nor_a_hub_id(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        Checkpoint.open(str(tmp_path / "nowhere"))


def test_rejects_invalid_json(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").write_text('{"tts_model_type": ')
    assert refusal(folder).startswith(f"{folder / 'config.json'}: not JSON")


def test_names_all_missing_and_invalid_fields(folder: Path) -> None:
    rewrite(folder / "config.json", {"head_dim": None, "hidden_size": "wide"}, "talker_config")
    message = refusal(folder)
    assert message.startswith(f"{folder / 'config.json'}: ")
    assert "talker_config.head_dim: Field required" in message
    assert "talker_config.hidden_size" in message


def test_rejects_an_unknown_dialect(folder: Path) -> None:
    rewrite(folder / "config.json", {"eric": "elvish"}, "talker_config", "spk_is_dialect")
    assert "elvish" in refusal(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("subtalker_temperature", 11), ("top_p", 7), ("top_k", -1), ("repetition_penalty", 0)],
)
def test_rejects_sampling_defaults_out_of_range(folder: Path, field: str, value: float) -> None:
    path = folder / "generation_config.json"
    rewrite(path, {field: value})
    assert refusal(folder).startswith(f"{path}: {field}: Input should be")


@pytest.mark.parametrize(
    ("change", "keys", "problem"),
    [
        ({"tts_pad_token_id": 2048}, (), "tts_pad_token_id is 2048, talker_config.text_vocab_size is 2048"),
        ({"codec_bos_id": 3072}, ("talker_config",), "codec_bos_id is 3072, vocab_size is 3072"),
        ({"ryan": 5000}, ("talker_config", "spk_id"), "spk_id.ryan is 5000, vocab_size is 3072"),
        ({"codec_pad_id": -1}, ("talker_config",), "talker_config.codec_pad_id: Input should be"),
    ],
)
def test_rejects_an_id_outside_the_embedding(
    folder: Path, change: dict[str, int], keys: tuple[str, ...], problem: str
) -> None:
    rewrite(folder / "config.json", change, *keys)
    message = refusal(folder)
    assert message.startswith(f"{folder / 'config.json'}: ")
    assert problem in message


def test_rejects_a_vocabulary_larger_than_the_embedding(folder: Path) -> None:
    rewrite(folder / "vocab.json", {"hello": 10_000_198})
    with pytest.raises(CheckpointError) as refused:
        TextTokenizer(Checkpoint.open(str(folder)), 64)
    wrong = "'hello' has id 10000198, talker_config.text_vocab_size of config.json is 2048"
    assert str(refused.value) == f"{folder / 'vocab.json'}: {wrong}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not JSON: "),
        ("{}", "added_tokens_decoder: Field required"),
        ('{"added_tokens_decoder": {"7": {}}}', "added_tokens_decoder.7.content: Field required"),
    ],
)
def test_rejects_an_invalid_tokenizer_configuration(folder: Path, content: str, problem: str) -> None:
    path = folder / "tokenizer_config.json"
    path.unlink()
    path.write_text(content)
    with pytest.raises(CheckpointError) as refused:
        TextTokenizer(Checkpoint.open(str(folder)), 64)
    assert str(refused.value).startswith(f"{path}: {problem}")


def test_rejects_a_config_whose_shapes_differ_from_the_tensors(folder: Path) -> None:
    rewrite(folder / "config.json", {"intermediate_size": 512}, "talker_config")
    checkpoint = Checkpoint.open(str(folder))
    path = checkpoint.path("model.safetensors")
    with pytest.raises(CheckpointError) as refused:
        load_tensors(path, talker_shapes(checkpoint.config))
    assert str(path) in str(refused.value)
    assert "mlp.gate_proj.weight has shape [256, 128], config.json says [512, 128]" in str(refused.value)


def test_names_a_missing_tensor(folder: Path) -> None:
    path, name = folder / "speech_tokenizer" / "model.safetensors", "decoder.pre_conv.conv.bias"
    tensors = load_file(path)
    del tensors[name]
    path.unlink()
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as refused:
        CodecStep.from_checkpoint(Checkpoint.open(str(folder)))
    assert str(refused.value) == f"{path}: tensor {name} is missing (expected shape [64])"


def test_rejects_a_file_that_is_not_safetensors(folder: Path) -> None:
    path = folder / "speech_tokenizer" / "model.safetensors"
    path.unlink()
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        CodecStep.from_checkpoint(Checkpoint.open(str(folder)))


def test_sharded_weights_are_those_of_one_file(checkpoint_of: CheckpointOf, tmp_path: Path) -> None:
    whole = Checkpoint.open(str(checkpoint_of("base")))
    shutil.copytree(whole.folder, tmp_path / "sharded")
    for folder in (tmp_path / "sharded", tmp_path / "sharded" / "speech_tokenizer"):
        shard(folder / "model.safetensors", 3)
    sharded = Checkpoint.open(str(tmp_path / "sharded"))
    shapes = talker_shapes(whole.config)
    expected = load_tensors(whole.path("model.safetensors"), shapes)
    found = load_tensors(sharded.path("model.safetensors"), shapes)
    assert all(torch.equal(found[name], expected[name]) for name in shapes)
    assert sharded.speaker_digest == whole.speaker_digest
    assert len(sharded.codec_digest) == 64
    CodecStep.from_checkpoint(sharded)


def test_names_a_missing_shard_and_its_index(folder: Path) -> None:
    shard(folder / "model.safetensors", 2)
    missing = folder / "model-00002-of-00002.safetensors"
    missing.unlink()
    checkpoint = Checkpoint.open(str(folder))
    with pytest.raises(CheckpointError) as refused:
        load_tensors(checkpoint.path("model.safetensors"), talker_shapes(checkpoint.config))
    assert str(refused.value) == f"{missing}: missing from the checkpoint, model.safetensors.index.json names it"


TEXTS = (
    "Hello, world! It's 3 o'clock.",
    "你好，今天天气很好。",
    "Grüße aus Köln – ça va?",
    "  two  spaces\nand a line",
)


def test_a_checkpoint_may_have_its_tokenizer_in_one_file(folder: Path) -> None:
    released = TextTokenizer(Checkpoint.open(str(folder)), 64)
    whole = released._tokenizer
    whole.enable_truncation(2)
    whole.save(str(folder / "tokenizer.json"))
    whole.no_truncation()
    for name in TOKENIZER_FILES:
        (folder / name).unlink()
    loaded = TextTokenizer(Checkpoint.open(str(folder)), 64)
    assert [loaded.spoken(text) for text in TEXTS] == [released.spoken(text) for text in TEXTS]
    assert loaded.role == released.role
    with pytest.raises(InvalidRequest, match="control tokens are not allowed"):
        loaded.spoken("<|im_end|>")


def test_rejects_a_tokenizer_json_that_is_none(folder: Path) -> None:
    (folder / "merges.txt").unlink()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError) as refused:
        TextTokenizer(Checkpoint.open(str(folder)), 64)
    assert str(refused.value).startswith(f"{folder / 'tokenizer.json'}: not a tokenizer: ")


def test_a_lora_adapter_is_refused_with_what_to_do(tmp_path: Path) -> None:
    base = "Qwen/Qwen3-TTS-12Hz-1.7B-Base"
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "peft_type": "LORA"}))
    (tmp_path / "adapter_model.safetensors").touch()
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: a LoRA adapter, not a checkpoint: merge it into {base} (PEFT's merge_and_")


def test_tensors_keep_their_dtype(tiny_checkpoint: Path) -> None:
    checkpoint = Checkpoint.open(str(tiny_checkpoint))
    name = "talker.model.norm.weight"
    tensors = load_tensors(checkpoint.path("model.safetensors"), {name: (128,)})
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {name: torch.bfloat16}
