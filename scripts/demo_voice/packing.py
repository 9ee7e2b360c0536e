"""Writes what was trained as a checkpoint in the released layout."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from qwen3_tts_engine.checkpoint.checkpoint import CONFIG, SPEECH_TOKENIZER, WEIGHTS
from qwen3_tts_engine.checkpoint.checkpoint import GENERATION_CONFIG as GENERATION
from qwen3_tts_engine.checkpoint.configs import ModelConfig, SpeechTokenizerConfig, read_config
from qwen3_tts_engine.checkpoint.tensor_shapes import TensorShapes, codec_decoder_shapes, talker_shapes
from scripts.demo_voice import snapshots
from scripts.demo_voice.codec.training import SNAPSHOT as CODEC
from scripts.demo_voice.sizes import (
    ACTIVE,
    CODES,
    GENERATION_CONFIG,
    Sizes,
    model_config,
    speech_tokenizer_config,
)
from scripts.demo_voice.talker.training import SNAPSHOT as TALKER
from scripts.demo_voice.tokenizer import copy_files
from scripts.synthetic.configs import AUDIO_CONFIGURATION, AUDIO_PREPROCESSOR, TEXT_PREPROCESSOR, Json

Tensors = dict[str, Tensor]
HEAD = "talker.codec_head.weight"
EMBEDDING = "talker.model.codec_embedding.weight"


def pack(folder: Path, checkpoint: Path, sizes: Sizes) -> int:
    """Writes `checkpoint` from the snapshots in `folder`; returns its size in bytes."""
    codec = checkpoint / SPEECH_TOKENIZER
    codec.mkdir(parents=True, exist_ok=True)
    copy_files(checkpoint)
    _write(checkpoint / CONFIG, model_config(sizes))
    _write(checkpoint / GENERATION, GENERATION_CONFIG)
    _write(checkpoint / "preprocessor_config.json", TEXT_PREPROCESSOR)
    _write(codec / CONFIG, speech_tokenizer_config(sizes))
    _write(codec / "configuration.json", AUDIO_CONFIGURATION)
    _write(codec / "preprocessor_config.json", AUDIO_PREPROCESSOR)
    talker = talker_tensors(snapshots.load(folder / TALKER), sizes)
    shapes = talker_shapes(read_config(checkpoint / CONFIG, ModelConfig))
    _save(talker, shapes, checkpoint / WEIGHTS, torch.bfloat16)
    shapes = codec_decoder_shapes(read_config(codec / CONFIG, SpeechTokenizerConfig).decoder_config)
    _save(decoder_tensors(snapshots.load(folder / CODEC)), shapes, codec / WEIGHTS, torch.float16)
    return sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())


def talker_tensors(state: snapshots.State, sizes: Sizes) -> Tensors:
    """The talker with the heads and the languages that are not trained."""
    tensors = {f"talker.{name}": tensor.float() for name, tensor in _averaged(state).items()}
    trained = tensors[HEAD]
    tensors[HEAD] = trained.new_zeros(sizes.talker["vocab_size"], trained.shape[1])
    tensors[HEAD][:CODES] = trained[:CODES]
    tensors[HEAD][sizes.talker["codec_eos_token_id"]] = trained[CODES]
    _copy_languages(tensors[EMBEDDING], sizes.talker)
    return tensors


def decoder_tensors(state: snapshots.State) -> Tensors:
    return {name: tensor for name, tensor in _averaged(state).items() if name.startswith("decoder.")}


def _averaged(state: snapshots.State) -> Tensors:
    """The model, with averages instead of the parameters that they average."""
    averages: dict[str, Any] = state.get("averages", {})
    tensors: Tensors = state["model"] | averages.get("model", {})
    return tensors


def _copy_languages(embedding: Tensor, talker: Json) -> None:
    """Every language is English."""
    languages = talker["codec_language_id"]
    for row in languages.values():
        embedding[row] = embedding[languages["english"]]


def _save(tensors: Tensors, shapes: TensorShapes, path: Path, dtype: torch.dtype) -> None:
    """Tensors of inactive codebooks are zero. Raises ValueError for any other difference to the shapes."""
    missing = [name for name in shapes if name not in tensors and not is_inactive(name)]
    wrong = [name for name, shape in shapes.items() if name in tensors and tensors[name].shape != shape]
    unknown = [name for name in tensors if name not in shapes]
    if missing or wrong or unknown:
        raise ValueError(f"{path}: missing {missing}, of another shape {wrong}, unknown {unknown}")
    every = {name: tensors.get(name, torch.zeros(shape)).to(dtype).contiguous() for name, shape in shapes.items()}
    save_file(every, path, {"format": "pt"})


def is_inactive(name: str) -> bool:
    """Whether a tensor belongs to a codebook that carries no sound."""
    for marker in ("code_predictor.model.codec_embedding.", "code_predictor.lm_head.", "rvq_rest.vq.layers."):
        if marker in name:
            return int(name.partition(marker)[2].partition(".")[0]) >= ACTIVE - 1
    return False


def _write(path: Path, content: Json) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
