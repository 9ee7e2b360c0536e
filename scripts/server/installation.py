"""The installed tritonserver, or that of the wheel nvidia-pytriton: its binary, libraries and backends."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from export.tensorrt.api import PLUGIN_LIBRARY
from scripts.server.protection import ADMIN_KEY_VARIABLE

# Shared libraries that compiled backends load, by the requested names.
LIBRARIES = {"tensorrt": ("libnvinfer.so.8", "libnvinfer_plugin.so.8")}
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
STUB = "triton_python_backend_stub"


class ServerError(RuntimeError):
    """The server cannot be started, or did not become ready; the message says what to do."""


def find_tritonserver() -> Path:
    """The server on PATH, as in an NGC container, else the wheel's; raises ServerError without either."""
    if installed := shutil.which("tritonserver"):
        return Path(installed)
    binary = _wheel() / "tritonserver" / "bin" / "tritonserver"
    if not os.access(binary, os.X_OK):
        binary.chmod(binary.stat().st_mode | 0o111)
    return binary


def server_environment() -> dict[str, str]:
    """Environment in which the server finds its libraries, this Python and its packages, and one GPU."""
    environment = {"CUDA_VISIBLE_DEVICES": "0"} | os.environ
    environment.pop(ADMIN_KEY_VARIABLE, None)
    if shutil.which("tritonserver"):
        return environment
    libraries = [str(_wheel().parent / "nvidia_pytriton.libs"), str(_libpython_folder())]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *filter(None, [environment.get("LD_LIBRARY_PATH")])])
    # The stub uses the packages of the first python3 on PATH.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    return environment


def backend_directory(target: Path, compiled: Sequence[Path] = ()) -> Path:
    """Creates a backend directory in `target`: the Python backend with the stub of this Python, and compiled ones.

    Each folder of `compiled` holds libtriton_<name of the folder>.so. Raises ServerError if a library is missing.
    """
    wheel = _wheel() / "tritonserver"
    stub = wheel / "python_backend_stubs" / PYTHON / STUB
    if not stub.is_file():
        raise ServerError(f"nvidia-pytriton has no Python backend for Python {PYTHON}: use 3.9 to 3.13")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(wheel / "backends" / "python", target / "python")
    shutil.copy(stub, target / "python" / STUB)
    (target / "python" / STUB).chmod(0o755)
    for folder in compiled:
        _link_files(_compiled_files(folder.resolve()), target / folder.name)
    return target


def backend_options(build_folder: Path, compiled: Sequence[Path] = ()) -> list[str]:
    """Options for backends, unless an installed server has its own, and for their plugins."""
    library = os.environ.get(PLUGIN_LIBRARY)
    plugins = [f"--backend-config=tensorrt,plugins={library}"] if library else []
    if shutil.which("tritonserver"):
        return plugins
    folder = backend_directory(build_folder.resolve() / "backends", compiled)
    return [*plugins, f"--backend-directory={folder}"]


def _compiled_files(folder: Path) -> dict[str, Path]:
    """Files of a compiled backend's folder by name: the backend itself, and the libraries that it loads from there."""
    backend = folder / f"libtriton_{folder.name}.so"
    if not backend.is_file():
        raise ServerError(f"{backend} is missing: name the folder of a compiled backend")
    return {backend.name: backend} | {name: find_library(name) for name in LIBRARIES.get(folder.name, ())}


def find_library(name: str) -> Path:
    """Finds it, also as name.x.y, on LD_LIBRARY_PATH; raises ServerError."""
    for folder in map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))):
        if found := sorted(folder.glob(f"{name}*")):
            return found[0].resolve()
    raise ServerError(f"{name} is missing: add the folder that holds it to LD_LIBRARY_PATH")


def _link_files(files: Mapping[str, Path], folder: Path) -> None:
    folder.mkdir()
    for name, file in files.items():
        (folder / name).symlink_to(file)


def _wheel() -> Path:
    spec = find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError("no tritonserver on PATH and no nvidia-pytriton: pip install '.[embedded]'")
    return Path(spec.submodule_search_locations[0])


def _libpython_folder() -> Path:
    name = f"libpython{PYTHON}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR"), "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"]
    for folder in filter(None, folders):
        if (Path(folder) / name).is_file():
            return Path(folder)
    raise ServerError(f"{name} is missing: on Debian and Ubuntu it is the package libpython{PYTHON}")
