"""From a Base checkpoint to verified model files of its speaker encoder and its codec's encoder.

A repository has these models only once they are exported: Triton does not load a model folder without a version, so
the exporter lays out the whole folder, its configuration (`export/models`) included.
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

from export.forms.graph import Graph, Run, Runtime
from export.model_folder import VERSION, ExportError, facts, is_served, verified
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
# Frames of 80 ms: the common reference, and the longest one of the default settings.
COMMON_FRAMES, MOST_FRAMES = 38, EngineConfig(checkpoint="any").max_reference_frames
# Frames of the references to verify; the last one of each is partial.
CASES = (1, 2, 7, COMMON_FRAMES, 125, MOST_FRAMES)
X_VECTOR_ERROR = 1e-4
# Random sound has neighbours at equal distance now and then, and one that tips takes the rest of its frame along.
OTHER_CODES = 0.005


@dataclass(frozen=True)
class Encoder:
    """One of the two models: how to build it, what it reads, and when it agrees with PyTorch."""

    name: str
    output: str
    load: Callable[[Checkpoint], nn.Module]
    digest: Callable[[Checkpoint], str]
    inputs: Callable[[int], Arrays]
    """Inputs for a reference of so many frames."""
    dynamic: Callable[[], dict[str, dict[int, Any]]]
    error: Callable[[Any, Any], float]
    """Of an output of the shape that is expected."""
    limit: float
    agreement: str
    """How to say what the error is."""


def is_current(encoder: Encoder, checkpoint: Checkpoint, folder: Path, runtime: Runtime) -> bool:
    """Whether the model folder holds this checkpoint's encoder already."""
    version = folder / VERSION
    try:
        manifest = encoders.read_encoder(version, encoder.digest(checkpoint), checkpoint.folder)
    except CheckpointError:
        return False
    return is_served(version, manifest, runtime, [input_shapes(MOST_FRAMES)])


def export_encoder(
    encoder: Encoder, checkpoint: Checkpoint, folder: Path, runtime: Runtime, progress: Progress
) -> list[str]:
    """Build, verify and only then put in place; returns how well the file agrees with PyTorch, and what else it is.

    Raises CheckpointError, and ExportError when the file does not agree: what was there before stays.
    """
    version = folder / VERSION
    module = encoder.load(checkpoint)
    task = progress.add_task(f"{folder.name}/{runtime.filename}", total=len(CASES) + 1)
    with verified(version / runtime.filename) as path:
        engine = runtime.make(graph(encoder, module), path)
        progress.advance(task)
        error, size = _verify(encoder, module, path, runtime.load(path), lambda: progress.advance(task))
    (folder / CONFIG).write_text(configured(encoder, runtime, folder.name, size), encoding="utf-8")
    digest = encoder.digest(checkpoint)
    EncoderManifest(digest=digest, output_size=size, **facts(runtime, engine)).write(version)
    return [encoder.agreement.format(error), *([str(engine)] if engine else [])]


def graph(encoder: Encoder, module: nn.Module) -> Graph:
    """The encoder for one reference at a time."""
    example = encoder.inputs(9)
    sizes = [input_shapes(frames) for frames in (1, COMMON_FRAMES, MOST_FRAMES)]
    shapes = profile(*({name: shapes[name] for name in example} for shapes in sizes))
    return Graph(module, example, [encoder.output], encoder.dynamic(), [shapes])


def _verify(
    encoder: Encoder, module: nn.Module, path: Path, candidate: Run, done: Callable[[], None]
) -> tuple[float, int]:
    """The largest error and the size of the output; raises ExportError."""
    worst, size = 0.0, 0
    for frames in CASES:
        inputs = encoder.inputs(frames)
        with torch.inference_mode():
            expected: Tensor = module(*(torch.from_numpy(array) for array in inputs.values()))
        actual = candidate(inputs)[encoder.output]
        error = encoder.error(expected.numpy(), actual) if expected.shape == actual.shape else math.inf
        if not error <= encoder.limit:
            wrong = encoder.agreement.format(error)
            raise ExportError(f"{path}: differs from PyTorch for {frames} frames: {wrong}; deleted")
        worst, size = max(worst, error), actual.shape[-1]
        done()
    return worst, size


def configured(encoder: Encoder, runtime: Runtime, name: str, size: int) -> str:
    """config.pbtxt: what the model is, and behind it what runs it."""
    model, served = ((MODELS / f"{part}.pbtxt").read_text(encoding="utf-8") for part in (encoder.name, runtime.name))
    named = model.replace(f'name: "{encoder.name}"', f'name: "{name}"', 1)
    # ONNX Runtime's backend requires every size that is fixed in the file.
    return named.replace("[ 1, -1 ]", f"[ 1, {size} ]") + served


def _mel(frames: int) -> Arrays:
    random = np.random.default_rng(frames)
    return {encoders.MEL: random.normal(-5, 3, input_shapes(frames)[encoders.MEL]).astype(np.float32)}


def _audio(frames: int) -> Arrays:
    """A gliding tone in noise, whose last frame is partial."""
    random = np.random.default_rng(frames)
    count = frames * SAMPLES_PER_FRAME - SAMPLES_PER_FRAME // 3
    time = np.arange(count) / 24000
    audio = np.zeros(frames * SAMPLES_PER_FRAME, np.float32)
    audio[:count] = 0.3 * np.sin(1400 * time * (1 + 0.1 * np.sin(3 * time))) + random.normal(0, 0.05, count)
    shape = input_shapes(frames)[encoders.AUDIO]
    return {encoders.AUDIO: audio.reshape(shape), encoders.NUM_SAMPLES: np.array([[count]], np.int32)}


SPEAKER_ENCODER = Encoder(
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
CODEC_ENCODER = Encoder(
    name=encoders.CODEC_ENCODER,
    output=encoders.CODES,
    load=CodecEncoder.from_checkpoint,
    digest=lambda checkpoint: checkpoint.codec_digest,
    inputs=_audio,
    dynamic=lambda: {encoders.AUDIO: {1: Dim("frames", min=1, max=encoders.MAX_FRAMES)}, encoders.NUM_SAMPLES: {}},
    error=lambda expected, actual: float((expected != actual).mean()),
    limit=OTHER_CODES,
    agreement="{:.2%} of the codes differ",
)
