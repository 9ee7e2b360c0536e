"""Adds a model for another checkpoint to a repository, with its own name and settings, sharing code and codec.

A Base checkpoint's model uses the speaker encoder that `python -m export` exported from it, under any name.

python -m scripts.server add-model qwen3_tts_design --checkpoint Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import MANIFEST, CodecManifest
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.config import MAIN_MODEL
from qwen3_tts_engine.voices.encoders import SPEAKER_ENCODER, read_encoder

CONFIG, VERSION = "config.pbtxt", "1"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
NAMED = re.compile(r'^name: "[^"]*"', re.MULTILINE)
PARAMETER = r'^parameters {{ key: "{}" value {{ string_value: "[^"]*" }} }}$'
QUOTED = re.compile(r'[^"\\\n]+')


class AddModelError(Exception):
    """The model cannot be added; the message says why, and what to do."""


def add_model(name: str, checkpoint: str, repository: Path, copy: bool = False) -> Path:
    """Returns the folder of the new model. Raises AddModelError, and CheckpointError for an unreadable checkpoint.

    `copy` copies the code instead of linking it, for repositories without links (object stores).
    """
    main, folder = repository / MAIN_MODEL, repository / name
    if not NAME.fullmatch(name):
        raise AddModelError(f"{name!r}: a model's name has letters, digits, '_', '-' and '.'")
    if not (main / CONFIG).is_file():
        raise AddModelError(f"{main / CONFIG}: missing; the new model uses the code of {MAIN_MODEL}")
    if folder.exists():
        raise AddModelError(f"{folder}: already exists; choose another name, or remove it")
    opened = Checkpoint.open(checkpoint)
    check_codec(opened, repository)
    parameters = {"checkpoint": checkpoint}
    if opened.config.tts_model_type == "base":
        parameters["speaker_encoder"] = find_speaker_encoder(opened, repository, name)
    with tempfile.TemporaryDirectory(dir=repository, prefix=".add-") as temporary:
        # A server that polls the repository must not see a partial model.
        new = Path(temporary) / name
        new.mkdir()
        text = configured((main / CONFIG).read_text(encoding="utf-8"), name, parameters)
        (new / CONFIG).write_text(text, encoding="utf-8")
        if copy:
            shutil.copytree(main / VERSION, new / VERSION, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (new / VERSION).symlink_to(Path("..") / MAIN_MODEL / VERSION, target_is_directory=True)
        new.rename(folder)
    return folder


def check_codec(checkpoint: Checkpoint, repository: Path) -> None:
    """Raises AddModelError unless the repository's code2wav was exported from this checkpoint's codec or is missing."""
    folder = repository / contract.MODEL_NAME / VERSION
    if not (folder / MANIFEST).is_file():
        typer.echo(f"{folder / MANIFEST}: missing; run python -m export --checkpoint {checkpoint.folder}")
        return
    if CodecManifest.read(folder).codec_digest != checkpoint.codec_digest:
        raise AddModelError(
            f"{checkpoint.folder / 'speech_tokenizer'}: another codec than the one in {folder}. All released "
            "checkpoints share one codec; another codec requires a model repository and a server of its own"
        )


def find_speaker_encoder(checkpoint: Checkpoint, repository: Path, name: str) -> str:
    """Name of the model exported from this checkpoint's speaker encoder, or a free name for it."""
    for manifest in sorted(repository.glob(f"*/{VERSION}/{MANIFEST}")):
        try:
            read_encoder(manifest.parent, checkpoint.speaker_digest, checkpoint.folder)
        except CheckpointError:
            continue  # another encoder, or no encoder
        return manifest.parents[1].name
    free = f"{name}_{SPEAKER_ENCODER}" if (repository / SPEAKER_ENCODER).exists() else SPEAKER_ENCODER
    command = f"python -m export --checkpoint {checkpoint.folder} --speaker-encoder {free}"
    typer.echo(f"{repository / free}: missing; run {command}")
    return free


def configured(text: str, name: str, parameters: dict[str, str]) -> str:
    """The main model's config.pbtxt with another name and these parameters; everything else stays, comments too."""
    text = NAMED.sub(f'name: "{name}"', text, count=1)
    for key, value in parameters.items():
        if not QUOTED.fullmatch(value):
            raise AddModelError(f"{value!r}: a {key}'s name has no quotation marks, backslashes or line breaks")
        line = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        known = re.search(PARAMETER.format(key), text, re.MULTILINE)
        text = text.replace(known[0], line) if known else f"{text.rstrip()}\n{line}\n"
    return text


def main(
    name: Annotated[str, typer.Argument(help="name of the new model in requests")],
    checkpoint: Annotated[str, typer.Option(help="a folder, or a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign")],
    model_repository: Annotated[Path, typer.Option(exists=True, file_okay=False)] = Path("model_repository"),
    copy: Annotated[bool, typer.Option("--copy", help="copy the code, for repositories without links")] = False,
) -> None:
    """Add the model NAME for another checkpoint."""
    # The server may have another working directory.
    given = str(Path(checkpoint).resolve()) if Path(checkpoint).is_dir() else checkpoint
    try:
        folder = add_model(name, given, model_repository, copy)
    except (AddModelError, CheckpointError) as error:
        typer.secho(str(error), err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None
    typer.echo(
        f"{folder}: created for {given}; a server loads it at start, or on a load request for {name} with the server's "
        "admin key"
    )
