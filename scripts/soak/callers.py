"""The callers of a soak: each makes one request of its kind and returns its outcome."""

import http.client
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.errors import SpeechError, from_message
from qwen3_tts_client.protocol import SpeechRequest, TextPiece, encode
from qwen3_tts_client.server import Server as Connection
from qwen3_tts_client.stream import CHANNEL_OPTIONS, Timeouts
from qwen3_tts_client.sync_stream import speak
from qwen3_tts_client.voices import operate
from scripts.server.ports import Ports
from scripts.soak.utterances import BASE, CUSTOM, REFERENCE_RATE, Utterance, recording

# Longer than a dead server takes to serve again.
PATIENCE = Timeouts(stream_s=180.0, chunk_s=120.0)
HUNG_UP, RESET, MIXED = "hung up", "reset", "mixed"
LONGEST_PAUSE = 0.2
# Invalid fields.
INVALID: tuple[dict[str, Any], ...] = (
    {"text": ""},
    {"text": "x" * 100_000},
    {"speaker": "nobody"},
    {"language": "klingon"},
    {"temperature": -1.0},
    {"top_p": 7.0},
    {"max_frames": 0},
    {"voice": "nobody"},
)


@dataclass(frozen=True)
class Outcome:
    """The end of a request; times in monotonic seconds. `result` is one of errors.OUTCOMES or the constants above."""

    kind: str
    result: str
    began: float
    ended: float
    message: str = ""


class Caller:
    """Acts as one caller after another, in one thread."""

    def __init__(self, ports: Ports, utterances: list[Utterance], seed: int) -> None:
        self._ports, self._utterances, self._random = ports, utterances, random.Random(seed)
        self._name = f"voice {seed}"
        self._channel = grpc.insecure_channel(f"localhost:{ports.grpc}", options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def call(self) -> Outcome:
        kind = self._random.choices(list(KINDS), [kind.weight for kind in KINDS.values()])[0]
        began, message = time.monotonic(), ""
        try:
            result = KINDS[kind].call(self)
        except SpeechError as error:
            result, message = error.outcome, str(error)
        except (OSError, http.client.HTTPException) as error:  # of HTTP
            result, message = "disconnected", repr(error)
        return Outcome(kind, result, began, time.monotonic(), message)

    def listen(self) -> str:
        utterance = self._choose()
        return self._listen(utterance, utterance.whole())

    def listen_slowly(self) -> str:
        utterance = self._choose()
        return self._listen(utterance, utterance.whole(), self._pause)

    def type(self) -> str:
        """Streams the text word by word."""
        utterance = self._choose()
        return self._listen(utterance, utterance.typed(self._pause))

    def hang_up(self) -> str:
        """Cancels after one to four chunks."""
        utterance = self._choose()
        received, chunks = [np.empty(0, np.int16)], self._random.randint(1, 4)
        with closing(speak(self._stub, utterance.whole(), PATIENCE)) as stream:
            for _, chunk in stream:
                received.append(chunk.pcm)
                if len(received) > chunks:
                    break
        return HUNG_UP if utterance.is_beginning_of(np.concatenate(received)) else MIXED

    def cancel_early(self) -> str:
        """Cancels before the first audio."""
        call = self._stub.ModelStreamInfer(self._choose().whole(), timeout=PATIENCE.stream_s)
        time.sleep(self._random.uniform(0, LONGEST_PAUSE / 4))
        call.cancel()
        return HUNG_UP

    def stop_sending(self) -> str:
        """Sends only the text's first word; the server times out waiting for the rest."""
        request = replace(self._choose(CUSTOM).request, text="Hello ", max_frames=None)
        sequence_id = self._random.getrandbits(62) + 1
        over = threading.Event()

        def pieces() -> Iterator[service_pb2.ModelInferRequest]:
            yield encode(request, CUSTOM, piece=TextPiece(sequence_id, start=True, end=False))
            over.wait(PATIENCE.stream_s)

        try:
            for _ in speak(self._stub, pieces(), PATIENCE):
                pass
        finally:
            over.set()
        return "ok"

    def send_invalid(self) -> str:
        """Sends an invalid field."""
        request = replace(self._choose(CUSTOM).request, **self._random.choice(INVALID))
        for _ in speak(self._stub, [encode(request, CUSTOM)], PATIENCE):
            pass
        return "ok"

    def listen_by_http(self) -> str:
        utterance = self._choose(CUSTOM)
        with closing(self._connect()) as connection:
            lines = self._post(connection, utterance.request).read().decode().splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        if errors := [event["error"] for event in events if "error" in event]:
            raise from_message(errors[0])
        received = np.array([sample for event in events for sample in event.get("waveform", ())], np.int16)
        return self._compare(utterance, received)

    def reset(self) -> str:
        """Resets the TCP connection once the first audio has come."""
        with closing(self._connect()) as connection:
            connection.connect()
            # Closing a socket with a linger time of 0 resets the connection.
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with self._post(connection, self._choose(CUSTOM).request) as response:
                response.read(self._random.randint(1, 2000))
        return RESET

    def use_voice(self) -> str:
        """Lists voices, registers one, speaks with it, deletes it."""
        clone = self._choose(BASE)
        reference = {"ref_audio": recording(), "ref_sample_rate": REFERENCE_RATE, "ref_text": clone.request.ref_text}
        with Connection(f"localhost:{self._ports.grpc}", BASE) as connection:

            def do(operation: str, **fields: Any) -> list[dict[str, Any]]:
                return operate(connection, SpeechRequest("", operation=operation, **fields), PATIENCE.stream_s)

            # Left over if the server died.
            if any(voice["name"] == self._name for voice in do("list_voices")):
                do("delete_voice", voice=self._name)
            do("register_voice", voice=self._name, **reference)
            named = replace(clone.request, voice=self._name, ref_audio=None, ref_sample_rate=None, ref_text=None)
            result = self._listen(clone, [encode(named, BASE)])
            do("delete_voice", voice=self._name)
        return result

    def _listen(
        self,
        utterance: Utterance,
        messages: Iterable[service_pb2.ModelInferRequest],
        after_chunk: Callable[[], object] = lambda: None,
    ) -> str:
        received = [np.empty(0, np.int16)]
        try:
            for _, chunk in speak(self._stub, messages, PATIENCE):
                received.append(chunk.pcm)
                after_chunk()
        except SpeechError:
            if not utterance.is_beginning_of(np.concatenate(received)):
                return MIXED
            raise
        return self._compare(utterance, np.concatenate(received))

    def _compare(self, utterance: Utterance, received: np.ndarray) -> str:
        is_same = len(received) == len(utterance.samples) and utterance.is_beginning_of(received)
        return "ok" if is_same else MIXED

    def _choose(self, model: str | None = None) -> Utterance:
        return self._random.choice([u for u in self._utterances if model in (None, u.model)])

    def _pause(self) -> None:
        time.sleep(self._random.uniform(0, LONGEST_PAUSE))

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("localhost", self._ports.http, timeout=PATIENCE.chunk_s)

    def _post(self, connection: http.client.HTTPConnection, request: SpeechRequest) -> http.client.HTTPResponse:
        names = ("text", "speaker", "seed", "max_frames")
        body = json.dumps({name: getattr(request, name) for name in names})
        connection.request("POST", f"/v2/models/{CUSTOM}/generate_stream", body, {"Content-Type": "application/json"})
        return connection.getresponse()


@dataclass(frozen=True)
class Kind:
    """A caller's behaviour, its relative frequency, and the expected result of its requests."""

    call: Callable[[Caller], str]
    weight: int
    expected: str = "ok"


KINDS = {
    "listen": Kind(Caller.listen, 30),
    "listen slowly": Kind(Caller.listen_slowly, 4),
    "type": Kind(Caller.type, 6),
    "fall silent": Kind(Caller.stop_sending, 1, "cancelled"),
    "hang up": Kind(Caller.hang_up, 20, HUNG_UP),
    "leave": Kind(Caller.cancel_early, 12, HUNG_UP),
    "err": Kind(Caller.send_invalid, 30, "invalid"),
    "listen by HTTP": Kind(Caller.listen_by_http, 5),
    "reset": Kind(Caller.reset, 5, RESET),
    "keep a voice": Kind(Caller.use_voice, 2),
}
