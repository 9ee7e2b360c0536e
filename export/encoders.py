"""Exports a Base checkpoint's speaker encoder and codec encoder as verified models.

A repository has these models only after export: Triton does not load a model folder without a version, so the exporter
writes the whole folder, including its configuration (`export/models`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.export import Dim

from export.forms.graph import Run, Runtime, TracedModule
from export.model_folder import VERSION, ExportError, copy_files, facts, has_files, is_served, verified
from export.modules.codec_encoder import CodecEncoder
from export.modules.speaker_encoder import SpeakerEncoder
from export.profiles import profile
from export.tensorrt.process import Arrays
from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import EncoderManifest
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.voices import encoders
from qwen3_tts_engine.voices.encoders import input_shapes

MODELS, CONFIG = Path(__file__).parent / "models", "config.pbtxt"
# Frames of 80 ms: a typical reference, and the longest one by default.
COMMON_FRAMES, MOST_FRAMES = 38, EngineConfig(checkpoint="any").max_reference_frames
# Frames of the references to verify; each ends with a partial one.
CASES = (1, 2, 7, COMMON_FRAMES, 125, MOST_FRAMES)
X_VECTOR_ERROR = 1e-4
# Random audio has occasional equidistant codebook entries, and one flipped code changes the rest of its frame.
CODE_ERROR_RATE = 0.005


@dataclass(frozen=True)
class EncoderExport:
    """One of the two models: how to build it, its inputs, and its verification against PyTorch."""

    name: str
    output: str
    load: Callable[[Checkpoint], nn.Module]
    digest: Callable[[Checkpoint], str]
    inputs: Callable[[int], Arrays]
    """Inputs for a reference of that many frames."""
    dynamic: Callable[[], dict[str, dict[int, Any]]]
    error: Callable[[Any, Any], float]
    """Takes expected and actual outputs of equal shape."""
    limit: float
    agreement: str
    """Format string of the error."""


def is_current(encoder: EncoderExport, checkpoint: Checkpoint, folder: Path, runtime: Runtime) -> bool:
    """Whether the model folder already holds this checkpoint's encoder."""
    version = folder / VERSION
    try:
        manifest = encoders.read_encoder(version, encoder.digest(checkpoint), checkpoint.folder)
    except CheckpointError:
        return False
    has_code = runtime.code is None or has_files(version, runtime.code)
    return has_code and is_served(version, manifest, runtime, [input_shapes(MOST_FRAMES)])


def export_encoder(
    encoder: EncoderExport, checkpoint: Checkpoint, folder: Path, runtime: Runtime, progress: Progress
) -> list[str]:
    """Builds, verifies and only then installs the file; returns summary lines, the agreement with PyTorch first.

    Raises CheckpointError, and ExportError if verification fails; the previous file then stays.
    """
    version = folder / VERSION
    module = encoder.load(checkpoint)
    task = progress.add_task(f"{folder.name}/{runtime.filename}", total=len(CASES) + 1)
    with verified(version / runtime.filename) as path:
        engine = runtime.make(graph(encoder, module), path)
        progress.advance(task)
        error, size = _verify(encoder, module, path, runtime.load(path), lambda: progress.advance(task))
    if runtime.code:
        copy_files(runtime.code, version)
    (folder / CONFIG).write_text(configured(encoder, runtime, folder.name, size), encoding="utf-8")
    digest = encoder.digest(checkpoint)
    EncoderManifest(digest=digest, output_size=size, **facts(runtime, engine)).write(version)
    return [encoder.agreement.format(error), *([str(engine)] if engine else [])]


def graph(encoder: EncoderExport, module: nn.Module) -> TracedModule:
    """The encoder for one reference at a time."""
    example = encoder.inputs(9)
    sizes = [input_shapes(frames) for frames in (1, COMMON_FRAMES, MOST_FRAMES)]
    shapes = profile(*({name: shapes[name] for name in example} for shapes in sizes))
    return TracedModule(module, example, [encoder.output], encoder.dynamic(), [shapes])


def _verify(
    encoder: EncoderExport, module: nn.Module, path: Path, candidate: Run, advance: Callable[[], None]
) -> tuple[float, int]:
    """Returns the largest error and the size of the output; raises ExportError."""
    worst, size = 0.0, 0
    for frames in CASES:
        inputs = encoder.inputs(frames)
        with torch.inference_mode():
            expected: Tensor = module(*(torch.from_numpy(array) for array in inputs.values()))
        actual = candidate(inputs)[encoder.output]
        error = encoder.error(expected.numpy(), actual) if expected.shape == actual.shape else math.inf
        if not error <= encoder.limit:
            measured = encoder.agreement.format(error)
            raise ExportError(f"{path}: differs from PyTorch for {frames} frames: {measured}; deleted")
        worst, size = max(worst, error), actual.shape[-1]
        advance()
    return worst, size


def configured(encoder: EncoderExport, runtime: Runtime, name: str, size: int) -> str:
    """Text of config.pbtxt: the model's part, then the runtime's."""
    model, served = ((MODELS / f"{part}.pbtxt").read_text(encoding="utf-8") for part in (encoder.name, runtime.name))
    named = model.replace(f'name: "{encoder.name}"', f'name: "{name}"', 1)
    # TensorRT's backend requires every size that is fixed in the file.
    return named.replace("[ 1, -1 ]", f"[ 1, {size} ]") + served


def _mel(frames: int) -> Arrays:
    random = np.random.default_rng(frames)
    return {encoders.MEL: random.normal(-5, 3, input_shapes(frames)[encoders.MEL]).astype(np.float32)}


def _audio(frames: int) -> Arrays:
    """A frequency-swept tone in noise; the last frame is partial."""
    random = np.random.default_rng(frames)
    count = frames * SAMPLES_PER_FRAME - SAMPLES_PER_FRAME // 3
    time = np.arange(count) / 24000
    audio = np.zeros(frames * SAMPLES_PER_FRAME, np.float32)
    audio[:count] = 0.3 * np.sin(1400 * time * (1 + 0.1 * np.sin(3 * time))) + random.normal(0, 0.05, count)
    shape = input_shapes(frames)[encoders.AUDIO]
    return {encoders.AUDIO: audio.reshape(shape), encoders.NUM_SAMPLES: np.array([[count]], np.int32)}


SPEAKER_ENCODER = EncoderExport(
    name=encoders.SPEAKER_ENCODER,
    output=encoders.X_VECTOR,
    load=SpeakerEncoder.from_checkpoint,
    digest=lambda checkpoint: checkpoint.speaker_digest,
    inputs=_mel,
    dynamic=lambda: {encoders.MEL: {1: Dim("mels", min=5, max=input_shapes(encoders.MAX_FRAMES)[encoders.MEL][1])}},
    error=lambda expected, actual: float(np.abs(expected - actual).max()),
    limit=X_VECTOR_ERROR,
    agreement="max error {:.1e}",
)
CODEC_ENCODER = EncoderExport(
    name=encoders.CODEC_ENCODER,
    output=encoders.CODES,
    load=CodecEncoder.from_checkpoint,
    digest=lambda checkpoint: checkpoint.codec_digest,
    inputs=_audio,
    dynamic=lambda: {encoders.AUDIO: {1: Dim("frames", min=1, max=encoders.MAX_FRAMES)}, encoders.NUM_SAMPLES: {}},
    error=lambda expected, actual: float((expected != actual).mean()),
    limit=CODE_ERROR_RATE,
    agreement="{:.2%} of the codes differ",
)
