"""The package qwen-tts as reference, in fp32 on the CPU, without its torchaudio dependency."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoProcessor, PretrainedConfig, PreTrainedModel

GREEDY = {"do_sample": False, "subtalker_dosample": False}
# The package's defaults for settings given neither by the caller nor by generation_config.json.
HARD_DEFAULTS = {
    "do_sample": True,
    "top_k": 50,
    "top_p": 1.0,
    "temperature": 0.9,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "subtalker_temperature": 0.9,
    "max_new_tokens": 2048,
}


class _Tokenizer25HzConfig(PretrainedConfig):
    """Replaces the package's 25 Hz tokenizer, which requires torchaudio and sox."""

    model_type = "qwen3_tts_tokenizer_25hz"


class _Tokenizer25HzModel(PreTrainedModel):
    config_class = _Tokenizer25HzConfig


@dataclass(frozen=True)
class VoiceClone:
    """A reference voice: the x-vector [talker hidden], and for in-context cloning its codes [frames, 16] and text."""

    speaker: torch.Tensor
    codes: torch.Tensor | None = None
    text: str | None = None


def load_reference(folder: Path) -> Any:
    """The reference Qwen3TTSForConditionalGeneration with its speech tokenizer, fp32, eval."""
    models = _import_reference()
    AutoConfig.register("qwen3_tts", models.Qwen3TTSConfig)
    AutoModel.register(models.Qwen3TTSConfig, models.Qwen3TTSForConditionalGeneration)
    return AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


def load_processor(folder: Path) -> Any:
    """The reference text processor."""
    models = _import_reference()
    processing = importlib.import_module("qwen_tts.core.models.processing_qwen3_tts")
    AutoConfig.register("qwen3_tts", models.Qwen3TTSConfig)
    AutoProcessor.register(models.Qwen3TTSConfig, processing.Qwen3TTSProcessor)
    return AutoProcessor.from_pretrained(folder, fix_mistral_regex=True)


def reference_codec(folder: Path) -> Any:
    """The reference Qwen3TTSTokenizerV2Model of a checkpoint, fp32, eval; `.decoder` and `.encoder` are its halves."""
    _import_reference()
    codec = sys.modules["qwen_tts.core"]
    AutoConfig.register("qwen3_tts_tokenizer_12hz", codec.Qwen3TTSTokenizerV2Config)
    AutoModel.register(codec.Qwen3TTSTokenizerV2Config, codec.Qwen3TTSTokenizerV2Model)
    return AutoModel.from_pretrained(folder / "speech_tokenizer", dtype=torch.float32).eval()


def clone_voice(model: Any, audio: np.ndarray, text: str | None = None) -> VoiceClone:
    """The voice of `audio` [samples], 24 kHz mono float32; in context if `text` is given, else x-vector only."""
    speaker = model.extract_speaker_embedding(audio, sr=24000)
    if text is None:
        return VoiceClone(speaker)
    return VoiceClone(speaker, model.speech_tokenizer.encode(audio, sr=24000).audio_codes[0], text)


def reference_generate(
    model: Any,
    processor: Any,
    texts: Sequence[str],
    *,
    languages: Sequence[str] | None = None,
    speakers: Sequence[str] | None = None,
    instructs: Sequence[str] | None = None,
    clones: Sequence[VoiceClone] | None = None,
    non_streaming: bool | None = None,
    greedy: bool = True,
    **settings: Any,
) -> list[torch.Tensor]:
    """Codes int64 [frames, 16] of each text, from the same call to the model as in the package's wrapper.

    `speakers` for custom_voice, `instructs` for custom_voice and voice_design, `clones` for base. `non_streaming`
    defaults as in the package: True, but False for base. `settings` are those of HARD_DEFAULTS; max_new_tokens N gives
    at most N - 1 frames.
    """
    clone = model.tts_model_type == "base"
    inputs: dict[str, Any] = {"input_ids": [_ids(processor, assistant_text(text)) for text in texts]}
    inputs["languages"] = list(languages or ["Auto"] * len(texts))
    inputs["non_streaming_mode"] = not clone if non_streaming is None else non_streaming
    if clone:
        inputs |= _clone_inputs(processor, clones or [])
    else:
        inputs["instruct_ids"] = _instruct_ids(model, processor, instructs or [""] * len(texts))
    if model.tts_model_type == "custom_voice":
        inputs["speakers"] = list(speakers or [])
    chosen = HARD_DEFAULTS | {k: v for k, v in model.generate_config.items() if k in HARD_DEFAULTS}
    codes, _ = model.generate(**inputs, **(chosen | (GREEDY if greedy else {}) | settings))
    return list(codes)


def assistant_text(text: str) -> str:
    return f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n"


def reference_text(text: str) -> str:
    return f"<|im_start|>assistant\n{text}<|im_end|>\n"


def instruct_text(instruct: str) -> str:
    return f"<|im_start|>user\n{instruct}<|im_end|>\n"


def _ids(processor: Any, text: str) -> torch.Tensor:
    ids: torch.Tensor = processor(text=text, return_tensors="pt", padding=True)["input_ids"]
    return ids


def _instruct_ids(model: Any, processor: Any, instructs: Sequence[str]) -> list[torch.Tensor | None]:
    # The package ignores instructions for the small CustomVoice model.
    ignored = model.tts_model_type == "custom_voice" and model.tts_model_size == "0b6"
    return [_ids(processor, instruct_text(text)) if text and not ignored else None for text in instructs]


def _clone_inputs(processor: Any, clones: Sequence[VoiceClone]) -> dict[str, Any]:
    in_context = [clone.codes is not None for clone in clones]
    return {
        "ref_ids": [_ids(processor, reference_text(clone.text)) if clone.text else None for clone in clones],
        "voice_clone_prompt": {
            "ref_code": [clone.codes for clone in clones],
            "ref_spk_embedding": [clone.speaker for clone in clones],
            "x_vector_only_mode": [not codes for codes in in_context],
            "icl_mode": in_context,
        },
    }


def _import_reference() -> ModuleType:
    """Imports the model classes; their parent packages stay empty, because each __init__ imports everything."""
    if "qwen_tts" not in sys.modules:
        root = _package_folder()
        for name in ("", "core", "core.models", "core.tokenizer_12hz", "inference"):
            _register_empty_package(".".join(filter(None, ("qwen_tts", name))), root.joinpath(*name.split(".")))
        core = sys.modules["qwen_tts.core"]
        vars(core).update(Qwen3TTSTokenizerV1Config=_Tokenizer25HzConfig, Qwen3TTSTokenizerV1Model=_Tokenizer25HzModel)
        for module in ("configuration", "modeling"):
            _lift(f"qwen_tts.core.tokenizer_12hz.{module}_qwen3_tts_tokenizer_v2", core)
        models = sys.modules["qwen_tts.core.models"]
        for module in ("configuration", "modeling"):
            _lift(f"qwen_tts.core.models.{module}_qwen3_tts", models)
    return sys.modules["qwen_tts.core.models"]


def _package_folder() -> Path:
    spec = importlib.util.find_spec("qwen_tts")
    assert spec, "pip install --no-deps qwen-tts==0.1.1"
    assert spec.origin
    return Path(spec.origin).parent


def _register_empty_package(name: str, folder: Path) -> None:
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


def _lift(module: str, package: ModuleType) -> None:
    vars(package).update({k: v for k, v in vars(importlib.import_module(module)).items() if k.startswith("Qwen3TTS")})
