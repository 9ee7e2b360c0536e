"""From a Base checkpoint to verified model files of its speaker encoder and its codec's encoder.

A repository has these models only once they are exported: Triton does not load a model folder without a version, so
the exporter lays out the whole folder, its configuration (`export/models`) included.
"""

import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.export import Dim

from export.code2wav import VERSION, ExportError, commit
from export.codec_encoder import CodecEncoder
from export.onnx_form import ONNX, OPSET
from export.speaker_encoder import SpeakerEncoder
from qwen3_tts_engine import encoders
from qwen3_tts_engine.checkpoint import Checkpoint, CheckpointError
from qwen3_tts_engine.code2wav import SAMPLES_PER_FRAME
from qwen3_tts_engine.encoders import EncoderManifest
from qwen3_tts_engine.manifest import MANIFEST
from qwen3_tts_engine.reference_audio import HOP, NUM_MELS

MODELS = Path(__file__).parent / "models"
# Frames of 80 ms: the shortest reference, then short, common and long ones; the last of each is partial.
CASES = (1, 2, 7, 38, 125, 313)
MAX_MELS = encoders.MAX_FRAMES * SAMPLES_PER_FRAME // HOP + 1
X_VECTOR_ERROR = 1e-4
# Random sound has neighbours at equal distance now and then, and one that tips takes the rest of its frame along.
EQUAL_CODES = 0.995
Arrays = dict[str, Any]


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
    judge: Callable[[Any, Any], tuple[bool, str]]


def is_current(encoder: Encoder, checkpoint: Checkpoint, folder: Path) -> bool:
    """Whether the model folder holds this checkpoint's encoder already."""
    version = folder / VERSION
    try:
        manifest = EncoderManifest.read(version)
    except CheckpointError:
        return False
    return manifest.digest == encoder.digest(checkpoint) and (version / ONNX.filename).is_file()


def export_encoder(encoder: Encoder, checkpoint: Checkpoint, folder: Path, progress: Progress) -> str:
    """Build, verify and only then put in place; returns how well the file agrees with PyTorch.

    Raises CheckpointError, and ExportError when the file does not agree: it is deleted, what was there before stays.
    """
    version = folder / VERSION
    version.mkdir(parents=True, exist_ok=True)
    module = encoder.load(checkpoint)
    unverified = version / f"unverified-{ONNX.filename}"
    task = progress.add_task(f"{folder.name}/{ONNX.filename}", total=len(CASES) + 1)
    try:
        _build(encoder, module, unverified)
        progress.advance(task)
        agreement, size = _verify(encoder, module, unverified, lambda: progress.advance(task))
        (version / MANIFEST).unlink(missing_ok=True)
        unverified.replace(version / ONNX.filename)
    finally:
        unverified.unlink(missing_ok=True)
    _copy_config(encoder, folder)
    _manifest(encoder, checkpoint, size).write(version)
    return agreement


def _build(encoder: Encoder, module: nn.Module, path: Path) -> None:
    example = encoder.inputs(9)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # operators of absent packages
    with warnings.catch_warnings(action="ignore"):
        program = torch.onnx.export(
            module,
            tuple(torch.from_numpy(array) for array in example.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(example),
            output_names=[encoder.output],
            dynamic_shapes=encoder.dynamic(),
            external_data=False,
            verbose=False,
        )
    assert program is not None
    program.save(path)


def _verify(encoder: Encoder, module: nn.Module, path: Path, done: Callable[[], None]) -> tuple[str, int]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    worst, size = "", 0
    for frames in CASES:
        inputs = encoder.inputs(frames)
        with torch.inference_mode():
            expected: Tensor = module(*(torch.from_numpy(array) for array in inputs.values()))
        [actual] = session.run([encoder.output], inputs)
        agrees, worst = encoder.judge(expected.numpy(), actual)
        if not agrees:
            raise ExportError(f"{path}: differs from PyTorch for {frames} frames: {worst}; deleted")
        size = actual.shape[-1]
        done()
    return worst, size


def _copy_config(encoder: Encoder, folder: Path) -> None:
    shutil.copytree(MODELS / encoder.name, folder, dirs_exist_ok=True)
    config = folder / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace(f'name: "{encoder.name}"', f'name: "{folder.name}"', 1), encoding="utf-8")


def _manifest(encoder: Encoder, checkpoint: Checkpoint, size: int) -> EncoderManifest:
    return EncoderManifest(
        form=ONNX.name,
        digest=encoder.digest(checkpoint),
        output_size=size,
        opset=OPSET,
        torch=torch.__version__,
        onnx=onnx.__version__,
        commit=commit(),
    )


def _mel(frames: int) -> Arrays:
    random = np.random.default_rng(frames)
    count = (frames * SAMPLES_PER_FRAME - HOP // 2) // HOP
    return {encoders.MEL: random.normal(-5, 3, (1, count, NUM_MELS)).astype(np.float32)}


def _audio(frames: int) -> Arrays:
    """A gliding tone in noise, whose last frame is partial."""
    random = np.random.default_rng(frames)
    count = frames * SAMPLES_PER_FRAME - SAMPLES_PER_FRAME // 3
    time = np.arange(count) / 24000
    audio = np.zeros(frames * SAMPLES_PER_FRAME, np.float32)
    audio[:count] = 0.3 * np.sin(1400 * time * (1 + 0.1 * np.sin(3 * time))) + random.normal(0, 0.05, count)
    shape = (1, frames, SAMPLES_PER_FRAME)
    return {encoders.AUDIO: audio.reshape(shape), encoders.NUM_SAMPLES: np.array([[count]], np.int32)}


def _judge_vectors(expected: Any, actual: Any) -> tuple[bool, str]:
    error = float(np.abs(expected - actual).max())
    return expected.shape == actual.shape and error <= X_VECTOR_ERROR, f"max error {error:.1e}"


def _judge_codes(expected: Any, actual: Any) -> tuple[bool, str]:
    equal = float((expected == actual).mean()) if expected.shape == actual.shape else 0.0
    return equal >= EQUAL_CODES, f"{equal:.2%} of the codes equal"


SPEAKER_ENCODER = Encoder(
    name=encoders.SPEAKER_ENCODER,
    output=encoders.X_VECTOR,
    load=SpeakerEncoder.from_checkpoint,
    digest=lambda checkpoint: checkpoint.speaker_digest,
    inputs=_mel,
    dynamic=lambda: {encoders.MEL: {1: Dim("mels", min=5, max=MAX_MELS)}},
    judge=_judge_vectors,
)
CODEC_ENCODER = Encoder(
    name=encoders.CODEC_ENCODER,
    output=encoders.CODES,
    load=CodecEncoder.from_checkpoint,
    digest=lambda checkpoint: checkpoint.codec_digest,
    inputs=_audio,
    dynamic=lambda: {encoders.AUDIO: {1: Dim("frames", min=1, max=encoders.MAX_FRAMES)}, encoders.NUM_SAMPLES: {}},
    judge=_judge_codes,
)
