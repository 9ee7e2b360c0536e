"""From a checkpoint to a verified model file of code2wav, and the manifest that says what it was made from."""

import subprocess
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import onnx
import torch
from rich.progress import Progress

from export.codec import CodecStep
from export.form import Form
from export.verify import Agreement, Verification
from qwen3_tts_engine.checkpoint import Checkpoint, CheckpointError
from qwen3_tts_engine.code2wav import MAX_FRAMES, MODEL_NAME, SAMPLE_RATE
from qwen3_tts_engine.manifest import MANIFEST, CodecManifest, EngineFacts
from qwen3_tts_engine.plan import differences, tensorrt_version

VERSION = "1"


class ExportError(Exception):
    """An exported model is not what it should be; the message names the file and how far it is off."""


def is_current(checkpoint: Checkpoint, repository: Path, form: Form) -> bool:
    """Whether the repository has this form of this checkpoint's codec already."""
    folder = version_folder(repository)
    try:
        manifest = CodecManifest.read(folder)
    except CheckpointError:
        return False
    made_from = (manifest.form, manifest.codec_digest)
    if made_from != (form.name, checkpoint.codec_digest) or not (folder / form.filename).is_file():
        return False
    return manifest.engine is None or _fits_here(manifest.engine)


def _fits_here(engine: EngineFacts) -> bool:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return not differences(engine, gpu, tensorrt_version(engine))


@dataclass(frozen=True)
class Exported:
    """How well the file agrees with the PyTorch step, and what else is worth telling."""

    agreement: Agreement
    lines: list[str]


def export(checkpoint: Checkpoint, repository: Path, form: Form, progress: Progress) -> Exported:
    """Build, verify and only then put in place.

    Raises CheckpointError, and ExportError when the file does not agree: it is deleted, what was there before stays.
    """
    folder = version_folder(repository)
    folder.mkdir(parents=True, exist_ok=True)
    # With the form's own ending, which its loader may go by.
    unverified = folder / f"unverified-{form.filename}"
    try:
        engine = build(checkpoint, unverified, form, progress)
        step = CodecStep.from_checkpoint(checkpoint)
        exported = _verify(step, unverified, form, progress)
        (folder / MANIFEST).unlink(missing_ok=True)
        unverified.replace(folder / form.filename)
    finally:
        unverified.unlink(missing_ok=True)
    _manifest(checkpoint, step, form, engine).write(folder)
    return replace(exported, lines=[str(engine), *exported.lines]) if engine else exported


def build(checkpoint: Checkpoint, path: Path, form: Form, progress: Progress) -> EngineFacts | None:
    """Build only: nothing says that the file at `path` is right. Raises CheckpointError."""
    task = progress.add_task(f"build {form.filename}", total=None)
    engine = form.build(CodecStep.from_checkpoint(checkpoint, form.weights_dtype), path)
    progress.update(task, total=1, completed=1)
    return engine


def version_folder(repository: Path) -> Path:
    return repository / MODEL_NAME / VERSION


def _verify(step: CodecStep, path: Path, form: Form, progress: Progress) -> Exported:
    candidate = form.load(path)
    verification = Verification(step, candidate, form.cases, form.utterance)
    tracked = progress.track(verification.run(), total=len(verification), description=f"verify {form.filename}")
    agreement = reduce(Agreement.worst, tracked)
    if not agreement.within(form.limit):
        raise ExportError(f"{path}: differs from the PyTorch step: {agreement} (limits: {form.limit.bounds}); deleted")
    return Exported(agreement, form.timings(candidate, step.state_size) if form.timings else [])


def _manifest(checkpoint: Checkpoint, step: CodecStep, form: Form, engine: EngineFacts | None) -> CodecManifest:
    return CodecManifest(
        form=form.name,
        state_size=step.state_size,
        state_dtype=form.state_dtype,
        codec_digest=checkpoint.codec_digest,
        max_frames=MAX_FRAMES,
        sample_rate=SAMPLE_RATE,
        opset=form.opset,
        torch=torch.__version__,
        onnx=onnx.__version__,
        commit=commit(),
        engine=engine,
    )


def commit() -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
