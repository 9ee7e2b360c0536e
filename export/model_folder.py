"""Shared by all exported models: files are installed once verified, with a manifest."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch

from export.forms.form import Form
from export.forms.graph import Runtime
from qwen3_tts_engine.checkpoint.manifest import MANIFEST, EngineFacts, Manifest
from qwen3_tts_engine.checkpoint.tensorrt_plan import Shapes, differences, tensorrt_version

VERSION = "1"


class ExportError(Exception):
    """An exported model failed verification; the message names the file and its error."""


@contextmanager
def verified(path: Path) -> Iterator[Path]:
    """Yields a temporary path at which to build and verify a file. Then replaces `path` with it and deletes the old
    manifest; if an exception is raised, deletes the new file instead."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Keeps the suffix, by which loaders may tell the format.
    unverified = path.with_name(f"unverified-{path.name}")
    try:
        yield unverified
        path.with_name(MANIFEST).unlink(missing_ok=True)
        unverified.replace(path)
    finally:
        unverified.unlink(missing_ok=True)


def is_served(folder: Path, manifest: Manifest, form: Form | Runtime, needed: Sequence[Shapes]) -> bool:
    """Whether the model of a version folder has this form and, for these shapes, runs on this machine."""
    if manifest.form != form.name or not (folder / form.filename).is_file():
        return False
    engine = manifest.engine
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return engine is None or not differences(engine, gpu, tensorrt_version(engine), needed)


def copy_files(source: Path, folder: Path) -> None:
    """Copies the code of a model; links become files."""
    for path in _code(source):
        target = folder / path.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)


def has_files(folder: Path, source: Path) -> bool:
    """Whether a version folder has the code of `source`, and not that of another version."""
    copies = ((path, folder / path.relative_to(source)) for path in _code(source))
    return all(copy.is_file() and copy.read_bytes() == path.read_bytes() for path, copy in copies)


def _code(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def facts(form: Form | Runtime, engine: EngineFacts | None) -> dict[str, Any]:
    """Fields of every manifest (manifest.Manifest)."""
    made_by = {"torch": torch.__version__, "onnx": onnx.__version__, "commit": _commit()}
    return {"form": form.name, "opset": form.opset, "engine": engine, **made_by}


def _commit() -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
