"""Writes a checkpoint in the released layout with random weights, for tests and benchmarks."""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress
from safetensors.torch import load_file, save_file

from qwen3_tts_engine.checkpoint.checkpoint import CONFIG, GENERATION_CONFIG, SPEECH_TOKENIZER, WEIGHTS
from qwen3_tts_engine.checkpoint.configs import ModelConfig, SpeechTokenizerConfig, read_config
from qwen3_tts_engine.checkpoint.tensor_shapes import (
    TensorShapes,
    codec_decoder_shapes,
    codec_encoder_shapes,
    speaker_encoder_shapes,
    talker_shapes,
)
from scripts.synthetic import configs
from scripts.synthetic.configs import ModelType, Size
from scripts.synthetic.tokenizer import TextTokenizer, text_tokenizer
from scripts.synthetic.weights import write_weights


def make_checkpoint(
    folder: Path, size: Size, model_type: ModelType, seed: int = 0, progress: Progress | None = None
) -> Path:
    """Writes the checkpoint into `folder`, created if missing, and returns `folder`.

    Tiny models have two layers and small widths, but the released codebooks, frame length, control ids and speakers.
    """
    codec = folder / SPEECH_TOKENIZER
    codec.mkdir(parents=True, exist_ok=True)
    tokenizer = text_tokenizer(size)
    _write_tokenizer(folder, tokenizer)
    _write_json(folder / CONFIG, configs.model_config(size, model_type, tokenizer.ids_for_config()))
    # With random weights an utterance ends at a random frame.
    _write_json(folder / GENERATION_CONFIG, configs.GENERATION | {"min_frames_per_text_token": 0.0})
    _write_json(folder / "preprocessor_config.json", configs.TEXT_PREPROCESSOR)
    _write_json(codec / CONFIG, configs.speech_tokenizer_config(size))
    _write_json(codec / "configuration.json", configs.AUDIO_CONFIGURATION)
    _write_json(codec / "preprocessor_config.json", configs.AUDIO_PREPROCESSOR)
    _write_tensors(folder / WEIGHTS, model_shapes(folder), torch.bfloat16, seed, progress)
    _write_tensors(codec / WEIGHTS, speech_tokenizer_shapes(codec), torch.float32, seed, progress)
    return folder


def make_endless(folder: Path) -> None:
    """Changes a checkpoint so that its utterances never end: the end token's logit is 0, below the top 50."""
    tensors = load_file(folder / WEIGHTS)
    tensors["talker.codec_head.weight"][configs.CODEC_IDS["codec_eos_token_id"]] = 0
    save_file(tensors, folder / WEIGHTS)


def model_shapes(folder: Path) -> TensorShapes:
    """The tensors of model.safetensors, as the config.json in `folder` has them."""
    config = read_config(folder / CONFIG, ModelConfig)
    speaker = speaker_encoder_shapes(config.speaker_encoder_config) if config.tts_model_type == "base" else {}
    return talker_shapes(config) | speaker


def speech_tokenizer_shapes(folder: Path) -> TensorShapes:
    """The tensors of speech_tokenizer/model.safetensors, as the config.json in `folder` has them."""
    config = read_config(folder / CONFIG, SpeechTokenizerConfig)
    return codec_decoder_shapes(config.decoder_config) | codec_encoder_shapes(config.encoder_config)


def _write_tokenizer(folder: Path, tokenizer: TextTokenizer) -> None:
    _write_json(folder / "vocab.json", tokenizer.vocab)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in tokenizer.merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", tokenizer.config())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _write_tensors(path: Path, shapes: TensorShapes, dtype: torch.dtype, seed: int, progress: Progress | None) -> None:
    total = sum(torch.Size(shape).numel() for shape in shapes.values())
    written = write_weights(path, shapes, dtype, seed)
    task = progress.add_task(f"{path.parent.name}/{path.name}", total=total) if progress else None
    for parameters in written:
        if progress and task is not None:
            progress.advance(task, parameters)


def main(
    folder: Path,
    size: Annotated[Size, typer.Option(help="dimensions of the weights")] = "tiny",
    model_type: Annotated[ModelType, typer.Option("--type")] = "custom_voice",
    seed: int = 0,
    endless: Annotated[bool, typer.Option(help="utterances end at their limit of frames only")] = False,
) -> None:
    """Write a synthetic checkpoint into FOLDER."""
    with Progress() as progress:
        make_checkpoint(folder, size, model_type, seed, progress)
    if endless:
        make_endless(folder)
    typer.echo(folder)


if __name__ == "__main__":
    typer.run(main)
