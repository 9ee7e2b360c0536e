"""Adds a model for another checkpoint to a repository: its own name and settings, the code and the codec shared.

python -m scripts.add_model qwen3_tts_design --checkpoint Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from qwen3_tts_engine import code2wav
from qwen3_tts_engine.checkpoint import Checkpoint, CheckpointError
from qwen3_tts_engine.config import MAIN_MODEL
from qwen3_tts_engine.manifest import MANIFEST, CodecManifest

CONFIG, VERSION = "config.pbtxt", "1"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
QUOTED = re.compile(r'[^"\\\n]+')


class AddModelError(Exception):
    """The model cannot be added; the message says why, and what to do."""


def add_model(name: str, checkpoint: str, repository: Path, copy: bool = False) -> Path:
    """The folder of the new model. Raises AddModelError, and CheckpointError for a checkpoint that cannot be read.

    `copy` gives the model a copy of the code, for repositories that cannot hold links (object stores).
    """
    main, folder = repository / MAIN_MODEL, repository / name
    if not NAME.fullmatch(name):
        raise AddModelError(f"{name!r}: a model's name has letters, digits, '_', '-' and '.'")
    if not (main / CONFIG).is_file():
        raise AddModelError(f"{main / CONFIG}: missing; a model is added beside {MAIN_MODEL}, whose code it uses")
    if folder.exists():
        raise AddModelError(f"{folder}: is there already; choose another name, or remove it")
    check_codec(Checkpoint.open(checkpoint), repository)
    with tempfile.TemporaryDirectory(dir=repository, prefix=".add-") as temporary:
        # A server that polls the repository must not see half a model.
        new = Path(temporary) / name
        new.mkdir()
        (new / CONFIG).write_text(configured((main / CONFIG).read_text(encoding="utf-8"), name, checkpoint))
        if copy:
            shutil.copytree(main / VERSION, new / VERSION, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (new / VERSION).symlink_to(Path("..") / MAIN_MODEL / VERSION, target_is_directory=True)
        new.rename(folder)
    return folder


def check_codec(checkpoint: Checkpoint, repository: Path) -> None:
    """Raises AddModelError unless the repository's code2wav was exported from this checkpoint's codec or is missing."""
    folder = repository / code2wav.MODEL_NAME / VERSION
    if not (folder / MANIFEST).is_file():
        typer.echo(f"{folder / MANIFEST}: not there yet: python -m export --checkpoint {checkpoint.folder}")
        return
    if CodecManifest.read(folder).codec_digest != checkpoint.codec_digest:
        raise AddModelError(
            f"{checkpoint.folder / 'speech_tokenizer'}: another codec than the one in {folder}. All checkpoints of the "
            "released family share theirs; one with a codec of its own needs a model repository and a server of its own"
        )


def configured(text: str, name: str, checkpoint: str) -> str:
    """The main model's config.pbtxt with another name and checkpoint; everything else, comments too, stays."""
    if not QUOTED.fullmatch(checkpoint):
        raise AddModelError(f"{checkpoint!r}: a checkpoint's name has no quotation marks, backslashes or line breaks")
    values = {r'^name: "([^"]*)"': name, r'key: "checkpoint" value { string_value: "([^"]*)"': checkpoint}
    for pattern, value in values.items():
        [found] = re.finditer(pattern, text, re.MULTILINE)
        text = text[: found.start(1)] + value + text[found.end(1) :]
    return text


def main(
    name: Annotated[str, typer.Argument(help="the new model's name, which requests give")],
    checkpoint: Annotated[str, typer.Option(help="a folder, or a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign")],
    model_repository: Annotated[Path, typer.Option(exists=True, file_okay=False)] = Path("model_repository"),
    copy: Annotated[bool, typer.Option("--copy", help="copy the code: where the repository cannot hold links")] = False,
) -> None:
    """Add the model NAME for another checkpoint."""
    # The server may be started from anywhere.
    given = str(Path(checkpoint).resolve()) if Path(checkpoint).is_dir() else checkpoint
    try:
        folder = add_model(name, given, model_repository, copy)
    except (AddModelError, CheckpointError) as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None
    typer.echo(f"{folder}: made for {given}; a server loads it when it starts, or with a load request for {name}")


if __name__ == "__main__":
    typer.run(main)
