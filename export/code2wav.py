"""From a checkpoint to a verified model file of code2wav, its golden cases, and the manifest that says what it was made
from."""

from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from rich.progress import Progress

from export.codec import CodecStep
from export.form import Form
from export.golden import make_golden
from export.model_folder import VERSION, ExportError, facts, is_served, verified
from export.verify import Agreement, Verification
from qwen3_tts_engine.checkpoint import Checkpoint, CheckpointError
from qwen3_tts_engine.code2wav import MAX_BATCH, MAX_FRAMES, MODEL_NAME, SAMPLE_RATE, input_shapes
from qwen3_tts_engine.golden import GOLDEN, Golden
from qwen3_tts_engine.manifest import CodecManifest, EngineFacts


def is_current(checkpoint: Checkpoint, repository: Path, form: Form) -> bool:
    """Whether the repository has this form of this checkpoint's codec already."""
    folder = version_folder(repository)
    try:
        manifest = CodecManifest.read(folder)
        Golden.read(folder, checkpoint.codec_digest)
    except CheckpointError:
        return False
    largest = input_shapes(MAX_BATCH, MAX_FRAMES, manifest.state_size)
    return manifest.codec_digest == checkpoint.codec_digest and is_served(folder, manifest, form, largest)


@dataclass(frozen=True)
class Exported:
    """How well the file agrees with the PyTorch step, and what else is worth telling."""

    agreement: Agreement
    lines: list[str]


def export(checkpoint: Checkpoint, repository: Path, form: Form, progress: Progress) -> Exported:
    """Build, verify and only then put in place.

    Raises CheckpointError, and ExportError when the file does not agree: what was there before stays.
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
        state_size=step.state_size,
        state_dtype=form.state_dtype,
        codec_digest=checkpoint.codec_digest,
        max_frames=MAX_FRAMES,
        sample_rate=SAMPLE_RATE,
        **facts(form, engine),
    )
