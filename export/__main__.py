"""python -m export: turn a checkpoint's codec into the model file that Triton serves."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import Progress

from export.code2wav import ExportError, export, is_current, version_folder
from export.form import Form
from export.onnx_form import ONNX
from export.python_form import PYTHON
from qwen3_tts_engine.checkpoint import Checkpoint, CheckpointError

FORMS: dict[str, Form] = {"onnx": ONNX, "python": PYTHON}


def main(
    checkpoint: Annotated[str, typer.Option(help="a folder, or a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")],
    model_repository: Annotated[Path, typer.Option(exists=True, file_okay=False)] = Path("model_repository"),
    form: Annotated[Literal["onnx", "python"], typer.Option(help="what the server runs")] = "onnx",
    force: Annotated[bool, typer.Option("--force", help="export even when the repository is up to date")] = False,
) -> None:
    """Export the codec into MODEL_REPOSITORY/code2wav/1 and verify it against PyTorch."""
    try:
        _export(Checkpoint.open(checkpoint), model_repository, FORMS[form], force)
    except (CheckpointError, ExportError) as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None


def _export(checkpoint: Checkpoint, repository: Path, form: Form, force: bool) -> None:
    path = version_folder(repository) / form.filename
    if not force and is_current(checkpoint, repository, form):
        typer.echo(f"{path}: up to date with {checkpoint.folder}; --force exports it again")
        return
    with Progress() as progress:
        agreement = export(checkpoint, repository, form, progress)
    typer.echo(f"{path}: {agreement} against PyTorch")


if __name__ == "__main__":
    typer.run(main)
