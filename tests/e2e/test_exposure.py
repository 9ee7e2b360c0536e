"""Access control of the server that `scripts/serve.sh` starts."""

import base64
import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import shared_memory

from scripts.server import protection
from scripts.server.ports import Ports
from scripts.server.protection import ADMIN_KEY_VARIABLE, GRPC_HEADER, HTTP_HEADER
from scripts.server.tritonserver import TritonServer, is_ready
from tests.e2e.releases import release_of
from tests.e2e.serving import ROOT, Caller, eventually, serve

SPEECH: dict[str, Any] = {"text": "Hello.", "speaker": "ryan", "max_frames": 3}
REGION = "/qwen3_tts_test_exposure"
FULL = "Failed to increase the shared memory pool size"
SERVE = ROOT / "scripts" / "serve.sh"


@dataclass(frozen=True)
class Launched:
    """The tritonserver started by the launcher; `log` holds the output of both."""

    ports: Ports
    pid: int
    log: Path
    key_file: Path

    @property
    def key(self) -> str:
        return self.key_file.read_text().strip()


@contextmanager
def launched(repository: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[Launched]:
    ports, log = Ports.free(), folder / "server.log"
    start = re.search(r'exec python (-m .*) "\$@"', SERVE.read_text())
    assert start is not None
    options = [f"--model-repository={repository}", f"--build-folder={folder}", *ports.options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *start[1].split(), *options],
            cwd=ROOT, stdout=output, stderr=output, env={**os.environ, "PROJECT_ROOT": str(ROOT), **environment},
        )  # fmt: skip
    try:
        eventually(lambda: process.poll() is not None or is_ready(ports), 120)
        assert process.poll() is None, log.read_text()[-2000:]
        [server] = [p.pid for p in psutil.Process(process.pid).children() if p.name() == "tritonserver"]
        yield Launched(ports, server, log, folder / f"admin_key-{ports.http}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def server(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched]:
    with launched(scripted_repository, tmp_path_factory.mktemp("exposure"), scripted_environment) as server:
        yield server


@pytest.fixture
def caller(server: Launched) -> Iterator[Caller]:
    with Caller(cast(TritonServer, server)) as caller:
        yield caller


def http(server: Launched, path: str, body: Any = None, key: str | None = None) -> tuple[int, str]:
    """Returns status and text; sends a GET if there is no body."""
    url = f"http://localhost:{server.ports.http}/v2/{path}"
    headers = {"Content-Type": "application/json"} | ({HTTP_HEADER: key} if key else {})
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def load_request_with_code(marker: Path) -> dict[str, Any]:
    """A load request that contains Python code."""
    config = {"backend": "python", "input": [tensor("a")], "output": [tensor("b")]}
    code = f"open({str(marker)!r}, 'w')\nclass TritonPythonModel: pass\n".encode()
    return {"parameters": {"config": json.dumps(config), "file:1/model.py": base64.b64encode(code).decode()}}


def tensor(name: str) -> dict[str, Any]:
    return {"name": name, "data_type": "TYPE_FP32", "dims": [1]}


RESTRICTED_HTTP: dict[str, Any] = {
    "repository/index": {},
    "repository/models/qwen3_tts/load": {},
    "repository/models/qwen3_tts/unload": {},
    "systemsharedmemory/status": None,
    "systemsharedmemory/region/any/register": {"key": REGION, "offset": 0, "byte_size": 8},
    "systemsharedmemory/unregister": {},
    "cudasharedmemory/status": None,
    "cudasharedmemory/unregister": {},
    "trace/setting": {"trace_level": ["TIMESTAMPS"], "trace_file": "anywhere"},
    "models/qwen3_tts/trace/setting": None,
    "logging": {"log_verbose_level": 9},
}
RESTRICTED_GRPC: dict[str, Any] = {
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name="qwen3_tts"),
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name="qwen3_tts"),
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(name="a", key=REGION, byte_size=8),
    "SystemSharedMemoryUnregister": service_pb2.SystemSharedMemoryUnregisterRequest(),
    "CudaSharedMemoryStatus": service_pb2.CudaSharedMemoryStatusRequest(),
    "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterRequest(name="a", raw_handle=b"a", byte_size=8),
    "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterRequest(),
    "TraceSetting": service_pb2.TraceSettingRequest(),
    "LogSettings": service_pb2.LogSettingsRequest(),
}


@pytest.mark.parametrize("path", RESTRICTED_HTTP)
@pytest.mark.parametrize("key", [None, "x" * 32])
def test_restricted_http_endpoint_requires_the_key(server: Launched, path: str, key: str | None) -> None:
    status, content = http(server, path, RESTRICTED_HTTP[path], key)
    assert status == 403, content
    assert "restricted" in content


@pytest.mark.parametrize("method", RESTRICTED_GRPC)
@pytest.mark.parametrize("key", [None, "x" * 32])
def test_restricted_grpc_method_requires_the_key(caller: Caller, method: str, key: str | None) -> None:
    metadata = [(GRPC_HEADER, key)] if key else []
    with pytest.raises(grpc.RpcError) as rejected:
        getattr(caller.stub, method)(RESTRICTED_GRPC[method], timeout=30, metadata=metadata)
    assert "This protocol is restricted" in rejected.value.details()


def test_load_request_without_the_key_does_not_run_its_code(server: Launched, caller: Caller, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    body = load_request_with_code(marker)
    http(server, "repository/models/evil/load", body)
    request = service_pb2.RepositoryModelLoadRequest(model_name="evil")
    request.parameters["config"].string_param = body["parameters"]["config"]
    request.parameters["file:1/model.py"].bytes_param = base64.b64decode(body["parameters"]["file:1/model.py"])
    with pytest.raises(grpc.RpcError):
        caller.stub.RepositoryModelLoad(request, timeout=30)
    assert not marker.exists()
    assert caller.speak(**SPEECH).error is None


def test_inference_and_status_require_no_key(server: Launched, caller: Caller) -> None:
    assert len(caller.speak(**SPEECH).samples) == 3 * 1920
    status, events = http(server, "models/qwen3_tts/generate_stream", SPEECH)
    assert (status, "waveform" in events) == (200, True)
    for path in ("health/ready", "models/qwen3_tts/ready", "models/qwen3_tts", "models/qwen3_tts/config"):
        assert http(server, path)[0] == 200, path
    for path in ("models/qwen3_tts/stats", "models/stats"):
        assert http(server, path)[0] == 200, path
    caller.stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name="qwen3_tts"), timeout=30)
    caller.stub.ModelConfig(service_pb2.ModelConfigRequest(name="qwen3_tts"), timeout=30)
    caller.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="qwen3_tts"), timeout=30)


def test_key_permits_model_and_shared_memory_requests(server: Launched, caller: Caller, tmp_path: Path) -> None:
    marker, metadata = tmp_path / "marker", [(GRPC_HEADER, server.key)]
    status, content = http(server, "repository/models/mine/load", load_request_with_code(marker), server.key)
    assert (status, marker.exists()) == (200, True), content
    request = service_pb2.RepositoryModelUnloadRequest(model_name="mine")
    caller.stub.RepositoryModelUnload(request, timeout=60, metadata=metadata)
    index = caller.stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True), timeout=30, metadata=metadata)
    assert {model.name for model in index.models} >= {"qwen3_tts", "code2wav"}
    memory = shared_memory.create_shared_memory_region("mine", REGION, 8)
    try:
        body = {"key": REGION, "offset": 0, "byte_size": 8}
        for action in ("register", "unregister"):
            status, content = http(server, f"systemsharedmemory/region/mine/{action}", body, server.key)
            assert status == release_of(server.ports).shared_memory, content
    finally:
        shared_memory.destroy_shared_memory_region(memory)


def test_key_file_is_readable_by_its_owner_only_and_key_is_not_logged(server: Launched) -> None:
    assert stat.S_IMODE(server.key_file.stat().st_mode) == 0o600
    assert str(server.key_file) in server.log.read_text()
    assert server.key not in server.log.read_text()


def test_key_from_the_environment_is_used_and_not_inherited(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    key = "0123456789-abcdef"
    with launched(scripted_repository, tmp_path, scripted_environment | {ADMIN_KEY_VARIABLE: key}) as server:
        assert http(server, "repository/index", {}, key)[0] == 200
        assert http(server, "repository/index", {})[0] == 403
        assert not server.key_file.exists()
        assert key not in Path(f"/proc/{server.pid}/environ").read_text()


def test_request_texts_are_not_logged(server: Launched, caller: Caller) -> None:
    secret = "Xylophone"
    assert caller.speak(f"{secret}.", speaker="ryan", max_frames=3).error is None
    assert "control tokens" in str(caller.speak(f"{secret} <|im_end|>", speaker="ryan").error)
    assert secret in str(caller.speak("Hello.", speaker=secret).error)
    assert http(server, "models/qwen3_tts/generate_stream", SPEECH | {"text": f"<tts_pad> {secret}"})[0] == 400
    assert secret not in server.log.read_text()


def test_server_listens_on_loopback_only(server: Launched) -> None:
    ports = {server.ports.grpc, server.ports.http, server.ports.metrics}
    # gRPC binds 127.0.0.1 as an IPv4-mapped IPv6 address.
    eventually(
        lambda: (
            {port: address[-8:] for port, address in listening().items() if port in ports}
            == dict.fromkeys(ports, "0100007F")
        )
    )


def listening() -> dict[int, str]:
    """Hexadecimal address of each listening socket by port."""
    lines = [line for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]]
    sockets = [(local.split(":"), state) for _, local, _, state, *_ in map(str.split, lines)]
    return {int(port, 16): address for (address, port), state in sockets if state == "0A"}


@pytest.fixture
def bounded(
    scripted_repository: Path,
    scripted_environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[TritonServer]:
    """A server whose shared memory regions are limited to 192 MiB."""
    monkeypatch.setattr(protection, "MAX_REGION_BYTES", 192 << 20)
    with serve(scripted_repository, tmp_path, scripted_environment) as server:
        yield server


def regions(server: TritonServer) -> dict[str, int]:
    """Sizes of the shared memory regions of the Python models, by file."""
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    return {path: Path(path).stat().st_size for path in set(re.findall(r"/dev/shm/triton_\S+", maps))}


def file_limit(process: int) -> str:
    found = re.search(r"^Max file size +(\S+)", Path(f"/proc/{process}/limits").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.long
def test_file_size_limit_applies_to_the_server_but_not_the_talker(server: Launched) -> None:
    """The limit covers the regions, not the talker, which may download a checkpoint."""
    assert file_limit(server.pid) == str(protection.MAX_REGION_BYTES)
    tasks = Path(f"/proc/{server.pid}/task").glob("*/children")
    stubs = [stub for children in tasks for stub in children.read_text().split()]
    [talker] = [stub for stub in stubs if b"/qwen3_tts/" in Path(f"/proc/{stub}/cmdline").read_bytes()]
    assert file_limit(int(talker)) == "unlimited"


def test_oversized_references_are_rejected_and_streams_still_fit(bounded: TritonServer) -> None:
    text = ("BYTES", [1], b"\x02\0\0\0Hi")
    audio = {seconds: np.zeros(seconds * 192_000, np.float32).tobytes() for seconds in (121, 260)}

    with Caller(bounded) as caller, ThreadPoolExecutor(2) as pool:

        def refuse(seconds: int) -> str:
            return caller.raw(text=text, ref_audio=("FP32", [seconds * 192_000], audio[seconds]))

        before = regions(bounded)
        assert set(before.values()) == {64 << 20}, "one region for the talker, one for the codec"
        errors = list(pool.map(refuse, [260] * 6))
        assert all(FULL in error for error in errors), errors
        assert regions(bounded) == before
        errors = list(pool.map(refuse, [121] * 6))
        rejected = {error for error in errors if FULL not in error}  # two concurrent ones may not fit
        assert rejected == {"INVALID_ARG: ref_audio: 23232000 samples: at most 23040000 samples"}
        assert max(regions(bounded).values()) <= protection.MAX_REGION_BYTES
        assert len(caller.speak(**SPEECH).samples) == 3 * 1920
