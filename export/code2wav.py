"""Exports code2wav: a verified model file, its golden cases, and a manifest of what they were made from."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import Progress

from export.agreement import Agreement
from export.forms.form import Form
from export.golden import make_golden
from export.model_folder import VERSION, ExportError, facts, is_served, verified
from export.modules.codec import CodecStep
from export.verify import failures, worst
from qwen3_tts_engine.audio import SAMPLE_RATE
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import CODEC_CONTRACT, CodecManifest, EngineFacts
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MODEL_NAME, served_shapes
from qwen3_tts_engine.codec.golden import GOLDEN, Golden


def is_current(checkpoint: Checkpoint, repository: Path, form: Form) -> bool:
    """Whether the repository already has this form of this checkpoint's codec."""
    folder = version_folder(repository)
    try:
        manifest = CodecManifest.read(folder)
        Golden.read(folder, checkpoint.codec_digest)
    except CheckpointError:
        return False
    is_verified = set(CHUNK_FRAMES) <= set(manifest.chunk_frames)
    is_same = manifest.codec_digest == checkpoint.codec_digest
    return is_same and is_verified and is_served(folder, manifest, form, served_shapes(CHUNK_FRAMES))


@dataclass(frozen=True)
class Exported:
    """Agreement of the file with the PyTorch step, and lines for the summary."""

    agreement: Agreement
    lines: list[str]


def export(checkpoint: Checkpoint, repository: Path, form: Form, progress: Progress) -> Exported:
    """Builds, verifies and only then installs the file.

    Raises CheckpointError, and ExportError if verification fails; the previous file then stays.
    """
    folder = version_folder(repository)
    with verified(folder / GOLDEN) as golden, verified(folder / form.filename) as path:
        engine = build(checkpoint, path, form, progress)
        step = CodecStep.from_checkpoint(checkpoint)
        exported = _verify(step, path, form, progress)
        make_golden(step, checkpoint.codec_digest, form.limit.snr_db).write(golden)
    _manifest(checkpoint, step, form, engine).write(folder)
    return replace(exported, lines=[str(engine), *exported.lines]) if engine else exported


def build(checkpoint: Checkpoint, path: Path, form: Form, progress: Progress) -> EngineFacts | None:
    """Builds the file at `path` without verifying it. Raises CheckpointError."""
    task = progress.add_task(f"build {form.filename}", total=None)
    engine = form.build(CodecStep.from_checkpoint(checkpoint), path)
    progress.update(task, total=1, completed=1)
    return engine


def version_folder(repository: Path) -> Path:
    return repository / MODEL_NAME / VERSION


def _verify(step: CodecStep, path: Path, form: Form, progress: Progress) -> Exported:
    candidate = form.load(path)
    verification, started = form.verification(step, candidate), time.monotonic()
    tracked = progress.track(verification.run(), total=len(verification), description=f"verify {form.filename}")
    outcomes = list(tracked)
    agreement = worst(outcomes)
    if failed := failures(outcomes, form.limit):
        raise ExportError(
            f"{path}: differs from the PyTorch step: {agreement} (limits: {form.limit.bounds}); "
            f"by rows x frames: {failed}; deleted. {form.remedy}"
        )
    verified_in = f"verified {verification} in {time.monotonic() - started:.1f} s"
    return Exported(agreement, [verified_in, *(form.timings(candidate) if form.timings else [])])


def _manifest(checkpoint: Checkpoint, step: CodecStep, form: Form, engine: EngineFacts | None) -> CodecManifest:
    return CodecManifest(
        state_size=step.state_size,
        state_dtype=form.state_dtype,
        codec_digest=checkpoint.codec_digest,
        chunk_frames=list(CHUNK_FRAMES),
        sample_rate=SAMPLE_RATE,
        contract=CODEC_CONTRACT,
        **facts(form, engine),
    )
