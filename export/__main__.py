"""python -m export: export a checkpoint's codec as the model file that Triton serves."""

from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.progress import Progress

from export.alignment import choose_heads
from export.alignment import is_current as is_alignment_current
from export.code2wav import build, export, is_current, version_folder
from export.encoders import CODEC_ENCODER, SPEAKER_ENCODER, EncoderExport, export_encoder
from export.encoders import is_current as is_encoder_current
from export.forms.form import Form
from export.forms.graph import Runtime
from export.forms.onnx_form import ONNX
from export.forms.python_form import PYTHON
from export.forms.tensorrt_form import tensorrt_form
from export.model_folder import VERSION, ExportError
from export.reference_voice import reference_voice
from export.tensorrt.api import PLUGIN_LIBRARY
from export.tensorrt.process import DEFAULTS, TENSORRT_PYTHON, PlanError, TensorRtSettings
from qwen3_tts_engine.checkpoint.alignment import alignment_file
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.config import MAIN_MODEL
from qwen3_tts_engine.talker import cpu

FORMS: dict[str, Form] = {"onnx": ONNX, "python": PYTHON}


def main(
    checkpoint: Annotated[str, typer.Option(help="a folder, or a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")],
    model_repository: Annotated[Path, typer.Option(exists=True, file_okay=False)] = Path("model_repository"),
    form: Annotated[Literal["onnx", "python", "tensorrt"], typer.Option(help="backend of the codec")] = "onnx",
    speaker_encoder: Annotated[
        str, typer.Option(help="model name, if several Base checkpoints share a repository")
    ] = SPEAKER_ENCODER.name,
    force: Annotated[bool, typer.Option("--force", help="export even if the repository is up to date")] = False,
    build_only: Annotated[Path | None, typer.Option(help="only write the file here, unverified")] = None,
    tensorrt_python: Annotated[
        Path, typer.Option(exists=True, envvar=TENSORRT_PYTHON, help="Python interpreter with TensorRT")
    ] = DEFAULTS.python,
    tensorrt_level: Annotated[int, typer.Option(min=0, max=5, help="optimisation level, 0 to 5")] = DEFAULTS.level,
    tensorrt_cache: Annotated[Path, typer.Option(help="folder of the timing cache")] = DEFAULTS.cache,
    tensorrt_plugin: Annotated[
        Path | None,
        typer.Option(exists=True, envvar=PLUGIN_LIBRARY, help="compiled export/plugin library: much faster"),
    ] = DEFAULTS.plugin,
) -> None:
    """Export the codec into MODEL_REPOSITORY/code2wav/1, a Base checkpoint's encoders beside it, and verify them;
    choose the talker's heads for word times."""
    settings = TensorRtSettings(tensorrt_python, tensorrt_level, tensorrt_cache, tensorrt_plugin)
    chosen = FORMS.get(form) or tensorrt_form(settings)
    # PyTorch's threads wait for each other after every operation, so that one busy core stops them all.
    torch.set_num_threads(max(1, cpu.cores() // 2))
    try:
        opened = Checkpoint.open(checkpoint)
        if build_only:
            _build_only(opened, build_only, chosen)
            return
        _export(opened, model_repository, chosen, force)
        _choose_heads(opened, model_repository / MAIN_MODEL / VERSION, force)
        if opened.config.tts_model_type == "base":
            for encoder, name in ((SPEAKER_ENCODER, speaker_encoder), (CODEC_ENCODER, CODEC_ENCODER.name)):
                _export_encoder(encoder, opened, model_repository / name, chosen.encoders, force)
    except (CheckpointError, ExportError, PlanError) as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None


def _export(checkpoint: Checkpoint, repository: Path, form: Form, force: bool) -> None:
    path = version_folder(repository) / form.filename
    if not force and is_current(checkpoint, repository, form):
        typer.echo(f"{path}: up to date with {checkpoint.folder}; --force exports it again")
        return
    with Progress() as progress:
        exported = export(checkpoint, repository, form, progress)
    _report(path, exported.agreement, exported.lines)


def _choose_heads(checkpoint: Checkpoint, folder: Path, force: bool) -> None:
    path = alignment_file(folder, checkpoint.talker_digest)
    if not force and is_alignment_current(checkpoint, folder):
        typer.echo(f"{path}: up to date with {checkpoint.folder}; --force chooses its heads again")
        return
    with Progress() as progress:
        task = progress.add_task("choose the heads of word times", total=None)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        voice = reference_voice(checkpoint) if checkpoint.config.tts_model_type == "base" else None
        alignment, reports = choose_heads(checkpoint, device, voice)
        progress.update(task, total=1, completed=1)
    folder.mkdir(parents=True, exist_ok=True)
    alignment.write(folder)
    typer.echo(f"{path}: heads that follow the text")
    for report in reports:
        typer.echo(f"  {report}")


def _build_only(checkpoint: Checkpoint, path: Path, form: Form) -> None:
    with Progress() as progress:
        engine = build(checkpoint, path, form, progress)
    typer.echo(f"{path}: built, NOT verified: do not serve it{f'; {engine}' if engine else ''}")


def _export_encoder(
    encoder: EncoderExport, checkpoint: Checkpoint, folder: Path, runtime: Runtime, force: bool
) -> None:
    if not force and is_encoder_current(encoder, checkpoint, folder, runtime):
        typer.echo(f"{folder}: up to date with {checkpoint.folder}; --force exports it again")
        return
    with Progress() as progress:
        agreement, *lines = export_encoder(encoder, checkpoint, folder, runtime, progress)
    _report(folder, agreement, lines)


def _report(path: Path, agreement: object, lines: list[str]) -> None:
    typer.echo(f"{path}: {agreement} against PyTorch")
    for line in lines:
        typer.echo(f"  {line}")


if __name__ == "__main__":
    typer.run(main)
