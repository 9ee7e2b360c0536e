"""Compiles a kernel's source for the emulator in this folder."""

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def compiled(
    program: Path, name: str, source: str, macros: Mapping[str, int], folder: Path, headers: Sequence[Path] = ()
) -> Any:
    """The function `run` of `program`, which includes the kernel `name`; `source` stands for it, in `folder`.

    Headers are those beside the program, then those of `headers`.
    """
    # A folder without the real headers, so that those of the emulator are found first.
    (folder / name).write_text(source)
    library = folder / "kernel.so"
    definitions = [f"-D{macro}={value}" for macro, value in macros.items()]
    includes = [f"-I{place}" for place in (program.parent, folder, *headers)]
    # No unique symbols, which a process's libraries share: the shared memory of an inline function is one.
    options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-fno-gnu-unique", "-w", *includes, *definitions]
    subprocess.run(["g++", *options, str(program), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library)).run


def mutated(source: str, mutation: tuple[str, str]) -> str:
    """The source with the second text in place of the first, which it has once."""
    before, after = mutation
    assert source.count(before) == 1
    return source.replace(before, after)
