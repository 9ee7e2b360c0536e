"""Starts a real tritonserver on free ports with a copy of the model repository, and calls it over gRPC."""

import os
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import End, SpeechRequest, encode
from qwen3_tts_client.server import Server
from qwen3_tts_client.stream import Responses, Timeouts
from qwen3_tts_client.sync_stream import speak
from qwen3_tts_client.voices import operate
from scripts.server.installation import backend_options
from scripts.server.ports import Ports
from scripts.server.tritonserver import BUILT, TritonServer

ROOT = Path(__file__).parents[2]
REPOSITORY = ROOT / "model_repository"
FAKES = ROOT / "tests" / "fakes" / "repository"
# Environment variable: folder with Triton's own backends, tensorrt/libtriton_tensorrt.so.
TRITON_BACKENDS = "QWEN3_TTS_TRITON_BACKENDS"
# Comparisons at start take seconds of each server; those of test_codec_proof.py and of a launcher have the defaults.
SHORT_PROOFS = {"QWEN3_TTS_TALKER_PROOF_SECONDS": "0", "QWEN3_TTS_CODEC_PROOF_SECONDS": "0.1"}


def copy_repository(target: Path, fakes: bool) -> Path:
    """Copies the model repository to `target`; `fakes` replaces talker and codec with scripted models."""
    shutil.copytree(REPOSITORY, target, ignore=shutil.ignore_patterns(*BUILT))
    if fakes:
        shutil.copytree(FAKES, target, dirs_exist_ok=True)
    return target


def scripted_settings(checkpoint: Path) -> dict[str, str]:
    """The environment of a server with scripted models."""
    # The scripted codec has no golden cases to compare with, and is nearly silent; the scripted talker repeats itself.
    names = ("CODEC_PROOF_SECONDS", "TRIM_SILENCE", "MAX_SILENCE_SECONDS", "MAX_REPEATED_SECONDS")
    off = {f"QWEN3_TTS_{name}": "0" for name in names}
    return {"QWEN3_TTS_CHECKPOINT": str(checkpoint), "SCRIPTED_TICK_SECONDS": "0.01", **off}


def repository_with(exported: Path, folder: Path) -> Path:
    """Copies the model repository into `folder`, with the models that were exported into another one."""
    repository = copy_repository(folder / "model_repository", fakes=False)
    shutil.copytree(exported, repository, dirs_exist_ok=True)
    return repository


@contextmanager
def serve(
    repository: Path,
    folder: Path,
    environment: dict[str, str],
    options: tuple[str, ...] = (),
    backends: Sequence[Path] = (),
    ready_timeout: float = 120.0,
) -> Iterator[TritonServer]:
    """Yields a ready server, which logs to `folder`/server.log."""
    folder.mkdir(parents=True, exist_ok=True)
    options = (*options, *backend_options(folder, backends))
    environment = {"PROJECT_ROOT": str(ROOT)} | SHORT_PROOFS | environment
    with (
        (folder / "server.log").open("wb") as log,
        TritonServer(
            repository,
            options=options,
            ports=Ports.free(),
            environment=environment,
            log=log,
            ready_timeout=ready_timeout,
        ) as server,
    ):
        yield server


@contextmanager
def serve_speech(exported: Path, checkpoint: Path, folder: Path) -> Iterator[TritonServer]:
    """Yields a ready server of the real talker with the codec exported into `exported`, through ONNX Runtime."""
    repository = repository_with(exported, folder)
    environment = {"QWEN3_TTS_CHECKPOINT": str(checkpoint)}
    with serve(repository, folder, environment) as server:
        yield server


def stub_pid(server: TritonServer, model: str) -> int:
    """Process id of the stub that runs a Python model."""
    children = Path(f"/proc/{server.pid}/task").glob("*/children")
    for child in {int(child) for path in children for child in path.read_text().split()}:
        if f"/{model}/1/" in Path(f"/proc/{child}/cmdline").read_text():
            return child
    raise LookupError(f"no child of process {server.pid} serves {model}")


def compiled_backend(name: str) -> Path:
    """The folder of Triton's own backend; skips the test if the environment variable is not set."""
    if TRITON_BACKENDS not in os.environ:
        pytest.skip(f"{TRITON_BACKENDS} names no folder with Triton's own backends")
    return Path(os.environ[TRITON_BACKENDS]) / name


@dataclass
class Received:
    """The responses to one request; times in perf_counter_ns."""

    sent: int = field(default_factory=time.perf_counter_ns)
    pcm: list[np.ndarray] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    error: str | None = None
    end: End = field(default_factory=End)

    @property
    def samples(self) -> np.ndarray:
        return np.concatenate(self.pcm) if self.pcm else np.empty(0, np.int16)


def pcm_of(response: Any) -> np.ndarray:
    """The samples of a response, int16 [samples]; none without an INT16 tensor."""
    result = response.infer_response
    tensors = zip(result.outputs, result.raw_output_contents, strict=True)
    return np.frombuffer(next((raw for output, raw in tensors if output.datatype == "INT16"), b""), np.int16)


class Caller:
    """A gRPC caller of one server."""

    def __init__(self, server: TritonServer) -> None:
        self.server = server
        self.channel = grpc.insecure_channel(f"localhost:{server.ports.grpc}")
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *exception: object) -> None:
        self.channel.close()

    def stream(
        self,
        text: str = "Hello.",
        speaker: str | None = "ryan",
        responses: Responses | None = None,
        model: str = "qwen3_tts",
        **fields: Any,
    ) -> Iterator[Any]:
        """Yields (arrival, chunk) for one request; raises SpeechError."""
        message = encode(SpeechRequest(text, speaker=speaker, **fields), model)
        return speak(self.stub, [message], Timeouts(120, 60), responses)

    def speak(self, text: str = "Hello.", **fields: Any) -> Received:
        received, responses = Received(), Responses()
        try:
            for arrival, chunk in self.stream(text, responses=responses, **fields):
                received.pcm.append(chunk.pcm)
                received.arrivals.append(arrival)
            received.end = responses.end or received.end
        except SpeechError as error:
            received.error = str(error)
        return received

    def operate(self, operation: str, voice: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """Returns the voices in the response; raises SpeechError."""
        request = SpeechRequest("", operation=operation, voice=voice, **fields)
        with Server(f"localhost:{self.server.ports.grpc}", "qwen3_tts") as server:
            return operate(server, request, 60)

    def raw(self, **inputs: tuple[str, list[int], bytes]) -> str:
        """Sends tensors (data type, shape, bytes) without validation; returns the error message."""
        message = service_pb2.ModelInferRequest(model_name="qwen3_tts")
        for name, (datatype, shape, content) in inputs.items():
            message.inputs.add(name=name, datatype=datatype, shape=shape)
            message.raw_input_contents.append(content)
        # Read to the end: an open stream delays server shutdown until the exit timeout.
        [response] = self.stub.ModelStreamInfer(iter([message]), timeout=30)
        return str(response.error_message)

    def is_ready(self, model: str = "qwen3_tts") -> bool:
        return bool(self.stub.ModelReady(service_pb2.ModelReadyRequest(name=model)).ready)

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of a metric's samples with these labels."""
        with urllib.request.urlopen(f"http://localhost:{self.server.ports.metrics}/metrics") as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        samples = [s for family in families for s in family.samples if s.name == name]
        assert samples, f"the server has no metric {name}"
        return sum(s.value for s in samples if labels.items() <= s.labels.items())


def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds:g} s"
        time.sleep(0.05)
