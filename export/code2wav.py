"""From a checkpoint to a verified model file of code2wav, and the manifest that says what it was made from."""

import subprocess
from functools import reduce
from pathlib import Path

import onnx
import torch
from rich.progress import Progress

from export.codec import CodecStep
from export.form import Form
from export.verify import CASES, Agreement, Verification
from qwen3_tts_engine.checkpoint import Checkpoint, CheckpointError
from qwen3_tts_engine.code2wav import MAX_FRAMES, MODEL_NAME, SAMPLE_RATE
from qwen3_tts_engine.manifest import MANIFEST, CodecManifest

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
    return made_from == (form.name, checkpoint.codec_digest) and (folder / form.filename).is_file()


def export(checkpoint: Checkpoint, repository: Path, form: Form, progress: Progress) -> Agreement:
    """Build, verify and only then put in place; returns how well the file agrees with the PyTorch step.

    Raises CheckpointError, and ExportError when the file does not agree: it is deleted, what was there before stays.
    """
    folder = version_folder(repository)
    folder.mkdir(parents=True, exist_ok=True)
    step = CodecStep.from_checkpoint(checkpoint)
    # With the form's own ending, which its loader may go by.
    unverified = folder / f"unverified-{form.filename}"
    try:
        _build(step, unverified, form, progress)
        agreement = _verify(step, unverified, form, progress)
        (folder / MANIFEST).unlink(missing_ok=True)
        unverified.replace(folder / form.filename)
    finally:
        unverified.unlink(missing_ok=True)
    _manifest(checkpoint, step, form).write(folder)
    return agreement


def version_folder(repository: Path) -> Path:
    return repository / MODEL_NAME / VERSION


def _build(step: CodecStep, path: Path, form: Form, progress: Progress) -> None:
    task = progress.add_task(f"build {form.filename}", total=None)
    form.build(step, path)
    progress.update(task, total=1, completed=1)


def _verify(step: CodecStep, path: Path, form: Form, progress: Progress) -> Agreement:
    comparisons = Verification(step, form.load(path)).run()
    tracked = progress.track(comparisons, total=len(CASES) + 1, description=f"verify {form.filename}")
    agreement = reduce(Agreement.worst, tracked)
    if not agreement.within(form.limit):
        raise ExportError(f"{path}: differs from the PyTorch step: {agreement} (limit: {form.limit}); deleted")
    return agreement


def _manifest(checkpoint: Checkpoint, step: CodecStep, form: Form) -> CodecManifest:
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
    )


def commit() -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
