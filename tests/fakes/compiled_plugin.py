"""The plugin's sources without TensorRT's layer, on a stand-in driver that records launches (plugin/).

They run in a separate process, since anything else in it that loads libcuda.so.1 gets the stand-in.
"""

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES, FAKES = ROOT / "export/plugin", Path(__file__).parent / "plugin"
OPTIONS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{SOURCES}"]
MEMORY_SHARE = "QWEN3_TTS_GPU_MEMORY_SHARE"
libraries: dict[str, Any] = {}
"""Libraries of this process: the stand-in for the driver, and the plugin."""


class CompiledPlugin:
    """Opens, runs and closes a program as TensorRT's layer does; `launches` returns the latest launches.

    Raises FileNotFoundError without a compiler.
    """

    def __init__(self, folder: Path) -> None:
        driver, step = folder / "libcuda.so.1", folder / "libstep.so"
        _compile([FAKES / "driver.cpp"], driver)
        compile_step(step)
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _load, (str(driver), str(step)))
        self.open = partial(self._call, open_step)
        self.run = partial(self._call, run_step)
        self.workspace = partial(self._call, workspace_of)
        self.close = partial(self._call, close_step)
        self.read = partial(self._call, ctypes.string_at)
        self.set_memory = partial(self._call, set_memory)

    def launches(self, word: str = "") -> list[list[str]]:
        """The driver's lines since the last call, split at spaces; with `word` the rest of those that begin with it."""
        split = [line.split() for line in self._call(_launches).splitlines()]
        return [rest for first, *rest in split if first == word] if word else split

    def end(self) -> None:
        self._process.shutdown()

    def _call(self, work: Any, *arguments: Any) -> Any:
        return self._process.submit(work, *arguments).result()


def compile_step(target: Path) -> None:
    """The plugin without TensorRT's layer, for ctypes. Raises FileNotFoundError without a compiler."""
    parts = [SOURCES / f"{name}.cpp" for name in ("driver", "program", "rows", "step")]
    _compile([FAKES / "harness.cpp", *parts], target)


def _compile(files: list[Path], target: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("g++")
    subprocess.run([compiler, *OPTIONS, *files, "-o", target, f"-Wl,-soname,{target.name}", "-ldl"], check=True)


def _load(driver: str, step: str) -> None:
    # Loaded first, under the name that the plugin loads.
    libraries["driver"] = ctypes.CDLL(driver, ctypes.RTLD_GLOBAL)
    libraries["driver"].take_launches.restype = ctypes.c_char_p
    load_step(step)


def load_step(step: str) -> None:
    """Loads the library of compile_step for the functions below."""
    libraries["step"] = ctypes.CDLL(step)
    libraries["step"].open_step.restype = ctypes.c_void_p
    libraries["step"].workspace_of.restype = ctypes.c_uint64


def open_step(program: bytes) -> tuple[int | None, str]:
    """Returns a handle, or None for a refused program, and the text on standard error."""
    return _with_standard_error(lambda: libraries["step"].open_step(program, ctypes.c_size_t(len(program))))


def run_step(step: int, rows: int, frames: int, places: list[int]) -> tuple[int, str]:
    """Returns the status and the text on standard error; `places` are those of inputs, outputs and workspace."""
    inputs, outputs = (ctypes.c_void_p * 2)(*places[:2]), (ctypes.c_void_p * 1)(places[2])
    shape = ctypes.c_int64(rows), ctypes.c_int64(frames)
    run = libraries["step"].run_step
    return _with_standard_error(lambda: run(ctypes.c_void_p(step), *shape, inputs, outputs, ctypes.c_void_p(places[3])))


def workspace_of(step: int, rows: int, frames: int) -> int:
    found = libraries["step"].workspace_of(ctypes.c_void_p(step), ctypes.c_int64(rows), ctypes.c_int64(frames))
    return int(found)


def set_memory(size: int, share: str | None = None) -> None:
    """Bytes of the GPU, and the part of it that this server may take."""
    libraries["driver"].set_total_memory(ctypes.c_size_t(size))
    os.environ.pop(MEMORY_SHARE, None)
    if share is not None:
        os.environ[MEMORY_SHARE] = share


def close_step(step: int) -> None:
    libraries["step"].close_step(ctypes.c_void_p(step))


def _launches() -> str:
    return str(libraries["driver"].take_launches().decode())


def _with_standard_error(work: Any) -> tuple[Any, str]:
    """Returns the result of `work` and what it wrote to standard error."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            result = work()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return result, file.read().decode()
