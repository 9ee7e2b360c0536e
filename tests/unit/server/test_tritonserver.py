"""The command of a tritonserver, its backend directory, and when it is ready."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.server import serve, tritonserver
from scripts.server.installation import ServerError, backend_directory
from scripts.server.ports import Ports
from scripts.server.protection import LIMITS, choose_admin_key
from tests.fakes.page_server import serving

TENSORRT = ("libnvinfer.so.8", "libnvinfer_plugin.so.8")


def compiled(folder: Path, name: str) -> Path:
    backend = folder / name
    backend.mkdir()
    (backend / f"libtriton_{name}.so").write_bytes(b"compiled")
    return backend


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def no_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")


def test_backend_directory_holds_the_python_backend(tmp_path: Path) -> None:
    directory = backend_directory(tmp_path / "backends")
    assert names(directory) == {"python"}
    assert os.access(directory / "python" / "triton_python_backend_stub", os.X_OK)


def test_finds_tensorrt_on_the_library_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = tmp_path / "lib"
    libraries.mkdir()
    for name in TENSORRT:
        (libraries / f"{name}.6.0").write_text(name)
        (libraries / name.replace(".8", ".10")).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{libraries}:")
    directory = backend_directory(tmp_path / "backends", [compiled(tmp_path, "tensorrt")]) / "tensorrt"
    assert names(directory) == {"libtriton_tensorrt.so", *TENSORRT}
    assert all((directory / name).read_text() == name for name in TENSORRT)
    assert (directory / "libtriton_tensorrt.so").read_bytes() == b"compiled"
    assert names(backend_directory(tmp_path / "backends")) == {"python"}, "it is created anew"


@pytest.mark.usefixtures("no_tensorrt")
def test_names_a_missing_library(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"libnvinfer\.so\.8 is missing: add the folder .* to LD_LIBRARY_PATH"):
        backend_directory(tmp_path / "backends", [compiled(tmp_path, "tensorrt")])
    with pytest.raises(ServerError, match=r"empty/libtriton_empty\.so is missing"):
        backend_directory(tmp_path / "backends", [tmp_path / "empty"])


def test_the_launcher_passes_a_compiled_backend_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def supervise(*given: Any) -> int:
        started.append(given)
        return 7

    monkeypatch.setattr(serve, "supervise", supervise)
    monkeypatch.setattr(serve, "bound_files", started.append)
    for name in TENSORRT:
        (tmp_path / name).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    ports = Ports.free()
    context: Any = SimpleNamespace(args=[*ports.options, "--model-config-name=onnxruntime"])
    with pytest.raises(SystemExit, match="7"):
        serve.main(context, tmp_path / "models", tmp_path, [compiled(tmp_path, "tensorrt")])
    [process, (command, _, drain)] = started
    assert process == os.getpid()
    last = ["--model-config-name=onnxruntime", f"--backend-directory={tmp_path / 'backends'}"]
    assert command[-len(last) :] == last
    assert (drain.file, drain.metrics_url) == (
        tmp_path / f"drain-{ports.http}",
        f"http://localhost:{ports.metrics}/metrics",
    )
    assert "libtriton_tensorrt.so" in names(tmp_path / "backends" / "tensorrt")


def test_the_launcher_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    context: Any = SimpleNamespace(args=[])
    with pytest.raises(
        SystemExit, match=r"file/build: Not a directory: name a folder that can be written \(--build-fo"
    ):
        serve.main(context, tmp_path / "models", tmp_path / "file" / "build")


@pytest.mark.parametrize("taken", ["grpc", "http", "metrics"])
def test_the_launcher_names_who_has_a_port(taken: str, tmp_path: Path) -> None:
    """And leaves that server's key alone."""
    ports = Ports.free()
    context: Any = SimpleNamespace(args=ports.options)
    with socket.create_server(("127.0.0.1", port := getattr(ports, taken))):
        reason = rf"port {port}: Address already in use, by \S+ \(process {os.getpid()}\): .* another --{taken}-port"
        with pytest.raises(SystemExit, match=reason):
            serve.main(context, tmp_path / "models", tmp_path)
    assert not list(tmp_path.glob("admin_key*"))


def test_servers_of_one_folder_have_files_of_their_own(tmp_path: Path) -> None:
    first, second = Ports(8001, 8000, 8002), Ports(9001, 9000, 9002)
    for ports in (first, second):
        choose_admin_key({}, serve.key_file_of(ports, tmp_path))
    keys = {serve.key_file_of(ports, tmp_path).read_text() for ports in (first, second)}
    drains = {serve.drain_of(ports, tmp_path, 1).file for ports in (first, second)}
    assert len(keys) == len(drains) == 2


def test_ports_are_those_of_the_last_option() -> None:
    assert Ports.of(["--http-port=1", "--load-model=*", "--http-port=2", "--grpc-port=3"]) == Ports(3, 2, 8002)


@pytest.fixture
def endpoint() -> Iterator[Callable[[str], int]]:
    """Serves a text and returns its port."""
    with ExitStack() as stack:
        yield lambda text: stack.enter_context(serving(text)).server_port


def test_a_server_is_ready_once_its_metrics_say_that_the_talkers_serve(endpoint: Callable[[str], int]) -> None:
    health, closed = endpoint(""), Ports.free().metrics

    def is_ready(metrics: int, **has: Any) -> bool:
        return tritonserver.is_ready(Ports(http=health, metrics=metrics), **has)

    assert is_ready(endpoint('qwen3_tts_ready{model="a"} 1\n'))
    assert not is_ready(endpoint('qwen3_tts_ready{model="a"} 1\nqwen3_tts_ready{model="b"} 0\n'))
    assert is_ready(endpoint("nv_gpu_utilization 0\n")), "no talker"
    assert not is_ready(closed), "Triton opens the port of its metrics last"
    assert is_ready(closed, has_metrics=False)


@pytest.mark.parametrize(
    ("options", "has_metrics"),
    [
        ([], True),
        (["--allow-metrics=true"], True),
        (["--allow-metrics=False"], False),
        (["--allow-metrics", "0"], False),
    ],
)
def test_metrics_are_not_awaited_where_they_are_off(
    options: list[str], has_metrics: bool, endpoint: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tritonserver, "server_command", lambda *_: [])
    ports = Ports(http=endpoint(""), metrics=Ports.free().metrics)
    assert tritonserver.TritonServer(Path(), options=options, ports=ports).is_ready() is not has_metrics


HELP = """#!/bin/sh
cat >&2 <<END
Usage: tritonserver [options]
  --http-max-input-size <integer>
  --grpc-max-response-pool-size <integer>
END
exit 1
"""


def test_limits_are_set_where_a_server_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server prints its options to standard error, and exits with 1."""
    program = tmp_path / "tritonserver"
    program.write_text(HELP)
    program.chmod(0o755)
    old = tritonserver.server_command(tmp_path, [], "key")
    assert not set(LIMITS) & set(old), "those of the wheel's release"
    assert "--http-restricted-api" in " ".join(old)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert set(LIMITS) <= set(tritonserver.server_command(tmp_path, [], "key"))
