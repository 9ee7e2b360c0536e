"""Serves a model repository: the launcher in a container, on a machine without one, and of each server of a fleet.

Without an installed tritonserver it takes that of the wheel nvidia-pytriton, which has the Python backend only. With
--backend FOLDER/tensorrt it also has FOLDER/tensorrt/libtriton_tensorrt.so, Triton's own backend for plans.
"""

import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from qwen3_tts_client.proxies import bypass_for_local_addresses
from scripts.server.drain import DEFAULT_SECONDS, FILE_VARIABLE, SECONDS_VARIABLE, Drain
from scripts.server.gpu_lock import locked_gpu, visible_gpus
from scripts.server.installation import ServerError, backend_options, server_environment
from scripts.server.mps import MpsDaemon
from scripts.server.ports import Ports
from scripts.server.protection import ADMIN_KEY_VARIABLE, HTTP_HEADER, AdminKeyError, bound_files, choose_admin_key
from scripts.server.supervisor import supervise
from scripts.server.tritonserver import server_command


def main(
    context: typer.Context,
    model_repository: Annotated[Path, typer.Option(exists=True, file_okay=False)] = Path("model_repository"),
    build_folder: Annotated[
        Path, typer.Option(help="folder of the admin key, the drain file and the backend directory")
    ] = Path("build"),
    backend: Annotated[
        list[Path] | None, typer.Option(exists=True, file_okay=False, help="folder of a compiled backend")
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, envvar=SECONDS_VARIABLE, help="time for open streams after SIGTERM or Ctrl-C")
    ] = DEFAULT_SECONDS,
    exclusive_gpu: Annotated[bool, typer.Option(help="refuse to share the GPU with another server")] = False,
) -> None:
    """Serve a model repository and restart a dead server; every other option goes to tritonserver unchanged."""
    # A container's first process would ignore it until the supervisor is there.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    bypass_for_local_addresses()
    try:
        make_folder(build_folder)
        ports = Ports.of(context.args)
        # Before the key, since another server on these ports has it in the same file.
        ports.check()
        key_file = key_file_of(ports, build_folder)
        admin_key = choose_admin_key(os.environ, key_file)
        options = [*context.args, *backend_options(build_folder, backend or [])]
        command = server_command(model_repository, options, admin_key)
        if not os.environ.get(ADMIN_KEY_VARIABLE):
            print(f"The key for the header {HTTP_HEADER} is in {key_file}", file=sys.stderr, flush=True)
        bound_files(os.getpid())
        drain = drain_of(ports, build_folder, drain_seconds)
        environment = server_environment() | {FILE_VARIABLE: str(drain.file)}
        with ExitStack() as locks:
            for gpu in visible_gpus(environment):
                locks.enter_context(locked_gpu(gpu, exclusively=exclusive_gpu))
            code = supervise(command, partial(MpsDaemon, environment), drain)
    except (ServerError, AdminKeyError) as error:
        sys.exit(f"error: {error}")
    sys.exit(code)


def make_folder(folder: Path) -> None:
    """Raises ServerError if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ServerError(f"{folder}: {error.strerror}: name a folder that can be written (--build-folder)") from None


def key_file_of(ports: Ports, build_folder: Path) -> Path:
    """Where a server's generated admin key is."""
    return build_folder / f"admin_key-{ports.http}"


def drain_of(ports: Ports, build_folder: Path, seconds: float) -> Drain:
    """The drain of a server; its file is named by the server's port, since servers may share the folder."""
    file = Path(os.environ.get(FILE_VARIABLE) or build_folder / f"drain-{ports.http}").resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    return Drain(file, f"http://localhost:{ports.metrics}/metrics", seconds)
