# ruff: noqa: N802 - gRPC names the methods
"""A server that follows a script: the schedule of its chunks is known, so the client's figures can be checked.

A text that is a JSON object is a Script (`{"chunks": [[20, 1], [100, 1]], "silence_ms": 80}`); any other text gets a
frame every 80 ms. Run it standalone with `python -m tests.fakes.stub_server --grpc-port 8001`.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import struct
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import grpc.aio
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.checkpoints import SPEAKERS

FRAME_SAMPLES = 1920
FRAME_MS = 80
SAMPLE_RATE = 24_000
AMPLITUDE = 8000
# A sleep of the event loop may end this late; the rest of a wait yields in a loop.
SLEEP_SLACK_S = 0.0015


@dataclass(frozen=True)
class Script:
    chunks: list[tuple[float, int]] = field(default_factory=list)  # (ms after the request, frames)
    silence_ms: float = 0  # before the audible part
    error: str | None = None  # sent after the chunks
    close: bool = False  # close the stream after the chunks, without an end
    hang: bool = False  # never end
    usage: list[int] = field(default_factory=list)  # in the last response, with `reason`
    reason: str = "stop"
    exact: bool = True  # to a tenth of a millisecond, by busy waiting

    @staticmethod
    def of(text: str, frames: int) -> "Script":
        if text.startswith("{"):
            return Script(**json.loads(text))
        return Script([(20 + FRAME_MS * frame, 1) for frame in range(frames)], exact=False)

    def pcm(self) -> list[NDArray[np.int16]]:
        """The audio of each chunk: silence, then a square wave."""
        samples = FRAME_SAMPLES * sum(frames for _, frames in self.chunks)
        wave = np.where(np.arange(samples) // 30 % 2, AMPLITUDE, -AMPLITUDE).astype(np.int16)
        wave[: round(self.silence_ms * SAMPLE_RATE / 1000)] = 0
        ends = np.cumsum([FRAME_SAMPLES * frames for _, frames in self.chunks], dtype=int)
        return np.split(wave, ends)[:-1]


class StubServicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(
        self, frames: int, ready: bool, models: tuple[str, ...], voices: dict[str, Any] | None, task: str
    ) -> None:
        self.frames = frames
        self.voices = voices
        self.speakers: Sequence[str] = SPEAKERS
        self.task = task
        self.ready = ready
        self.models = models
        # Triton since 26.09 refuses unknown models where older releases call them not ready.
        self.is_newest = False
        self.is_restricted = True  # the index of the models, to callers with the admin key
        self.max_characters = 1 << 30  # of a text, each of which counts as a token
        self.received: list[service_pb2.ModelInferRequest] = []
        self.sent_ns: dict[str, list[int]] = defaultdict(list)  # by text: when each chunk was actually sent
        self.cancelled = 0
        self.running = 0
        self.metadata: dict[str, Any] = {}  # of the last stream

    async def ModelReady(self, request: Any, context: Any) -> Any:
        if self.is_newest and request.name not in self.models:
            await self._refuse_unknown(request, context)
        return service_pb2.ModelReadyResponse(ready=self.ready and request.name in self.models)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        if request.name not in self.models:
            await self._refuse_unknown(request, context)
        return service_pb2.ModelMetadataResponse(name=request.name)

    async def _refuse_unknown(self, request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="stub", version="0")

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelConfigResponse()

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        if self.is_restricted:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting header 'admin-key'"
            )
        return service_pb2.RepositoryIndexResponse(
            models=[service_pb2.RepositoryIndexResponse.ModelIndex(name=name) for name in self.models]
        )

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.metadata = dict(context.invocation_metadata())
        self.running += 1
        try:
            async for request in requests:
                arrived_s = time.perf_counter()
                self.received.append(request)
                if is_more_text(request):
                    yield final_response(request.id)
                    continue
                if operation := input_text(request, "operation"):
                    yield voice_response(self.voices, self.task, self.speakers, operation, input_text(request, "voice"))
                    continue
                if len(text_of(request)) > self.max_characters:
                    yield too_long(text_of(request), self.max_characters)
                    continue
                async for response in self._responses(text_of(request), arrived_s):
                    yield response
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _responses(self, text: str, arrived_s: float) -> AsyncIterator[Any]:
        script, audio = audio_of(text, self.frames)
        for (at_ms, _), response in zip(script.chunks, audio, strict=True):
            await _sleep_until(arrived_s + at_ms / 1e3, script.exact)
            self.sent_ns[text].append(time.perf_counter_ns())
            yield response
        if script.hang:
            await asyncio.Event().wait()
        if script.error:
            yield service_pb2.ModelStreamInferResponse(error_message=script.error)
        elif not script.close:
            yield final_response(usage=script.usage, reason=script.reason)


@functools.lru_cache(maxsize=64)
def audio_of(text: str, frames: int) -> tuple[Script, list[Any]]:
    """The script of a text, and its chunks as responses."""
    script = Script.of(text, frames)
    return script, [audio_response(pcm, first=number == 0) for number, pcm in enumerate(script.pcm())]


def text_of(request: Any) -> str:
    return input_text(request, "text")


def input_text(request: Any, name: str) -> str:
    """The value of a BYTES tensor, empty if the request does not have it."""
    names = [tensor.name for tensor in request.inputs]
    return bytes(request.raw_input_contents[names.index(name)][4:]).decode() if name in names else ""


def is_more_text(request: Any) -> bool:
    """Whether it appends to the utterance that an earlier request of its sequence began."""
    parameters = request.parameters
    return "sequence_start" in parameters and not parameters["sequence_start"].bool_param


def final_response(request_id: str = "", usage: Sequence[int] = (), reason: str = "stop") -> Any:
    final = service_pb2.ModelStreamInferResponse()
    result = final.infer_response
    result.id = request_id
    if usage:
        result.outputs.add(name="finish_reason", datatype="BYTES", shape=[1])
        result.outputs.add(name="usage", datatype="INT32", shape=[4])
        encoded = struct.pack("<I", len(reason)) + reason.encode()
        result.raw_output_contents.extend([encoded, struct.pack("<4i", *usage)])
    final.infer_response.parameters["triton_final_response"].bool_param = True
    return final


def too_long(text: str, limit: int) -> Any:
    reason = f"text: {text[:100]!r}: {len(text)} tokens, at most {limit} are allowed"
    return service_pb2.ModelStreamInferResponse(error_message=f"INVALID_ARG: {reason}")


def voice_response(voices: dict[str, Any] | None, task: str, speakers: Sequence[str], operation: str, name: str) -> Any:
    """The answer to a voice operation; None as voices is a checkpoint for `task`, which has none."""
    if voices is None and operation == "list_speakers" and task == "CustomVoice":
        return _found([{"name": name, "dialect": None} for name in speakers])
    if voices is None:
        refused = f"this checkpoint is for {task} and takes speaker, and instruct for its style"
        return service_pb2.ModelStreamInferResponse(error_message=f"INVALID_ARG: operation: {operation!r}: {refused}")
    if operation == "delete_voice" and name not in voices:
        reason = f"voice: {name!r}: no voice is registered under this name"
        return service_pb2.ModelStreamInferResponse(error_message=f"INVALID_ARG: {reason}")
    if operation == "register_voice" and name in voices:
        reason = f"voice: {name!r}: already registered: delete it first, or choose another name"
        return service_pb2.ModelStreamInferResponse(error_message=f"INVALID_ARG: {reason}")
    if operation == "register_voice":
        voices[name] = {"name": name, "ref_text": None, "created": "2026-11-23T00:00:00+00:00", "x_vector_only": True}
    found = [voices.pop(name)] if operation == "delete_voice" else [voices[name]] if name else list(voices.values())
    return _found(found)


def _found(found: list[dict[str, Any]]) -> Any:
    raw = b"".join(struct.pack("<I", len(text)) + text for text in (json.dumps(voice).encode() for voice in found))
    response = final_response()
    response.infer_response.outputs.add(name="voices", datatype="BYTES", shape=[len(found)])
    response.infer_response.raw_output_contents.append(raw)
    return response


def audio_response(pcm: NDArray[np.int16], first: bool) -> Any:
    response = service_pb2.ModelStreamInferResponse()
    result = response.infer_response
    result.parameters["triton_final_response"].bool_param = False
    result.outputs.add(name="waveform", datatype="INT16", shape=[len(pcm)])
    result.raw_output_contents.append(pcm.tobytes())
    if first:
        result.outputs.add(name="sample_rate", datatype="INT32", shape=[1])
        result.raw_output_contents.append(struct.pack("<i", SAMPLE_RATE))
    return response


async def _sleep_until(due_s: float, exact: bool) -> None:
    await asyncio.sleep(max(0.0, due_s - time.perf_counter() - (SLEEP_SLACK_S if exact else 0)))
    while exact and time.perf_counter() < due_s:
        await asyncio.sleep(0)


async def speak_openai(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: int) -> None:
    """One POST of /v1/audio/speech, answered in HTTP chunks; an error of the script becomes a 503."""
    head = await reader.readuntil(b"\r\n\r\n")
    arrived_s = time.perf_counter()
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    script = Script.of(json.loads(await reader.readexactly(length))["input"], frames)
    if script.error:
        body = json.dumps({"error": script.error}).encode()
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nTransfer-Encoding: chunked\r\n\r\n")
        for (at_ms, _), pcm in zip(script.chunks, script.pcm(), strict=True):
            await _sleep_until(arrived_s + at_ms / 1e3, script.exact)
            writer.write(b"%x\r\n%s\r\n" % (pcm.nbytes, pcm.tobytes()))
        if not script.close:
            writer.write(b"0\r\n\r\n")
    writer.close()


class StubServer:
    """A context manager that serves from its own thread; the system chooses a port for 0."""

    def __init__(
        self,
        frames: int = 10,
        ready: bool = True,
        models: tuple[str, ...] = ("qwen3_tts",),
        grpc_port: int = 0,
        http_port: int = 0,
        voices: dict[str, Any] | None = None,
        task: str = "CustomVoice",
    ) -> None:
        """`voices` makes it a Base checkpoint."""
        self.servicer = StubServicer(frames, ready, models, voices, task)
        self._ports = (grpc_port, http_port)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(20):
            raise RuntimeError("the stub server did not start")
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        grpc_server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self.servicer, grpc_server)
        self.url = f"localhost:{grpc_server.add_insecure_port(f'localhost:{self._ports[0]}')}"
        await grpc_server.start()
        http_server = await asyncio.start_server(self._speak_openai, "localhost", self._ports[1])
        self.openai_url = f"http://localhost:{http_server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stop.wait()
        http_server.close()
        await grpc_server.stop(grace=0)

    async def _speak_openai(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client disconnects, or only probes the port.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await speak_openai(reader, writer, self.servicer.frames)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--frames", type=int, default=50, help="of the answer to a text that is not a script")
    args = parser.parse_args()
    with StubServer(args.frames, grpc_port=args.grpc_port, http_port=args.http_port) as server:
        print(f"gRPC {server.url}, OpenAI {server.openai_url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
