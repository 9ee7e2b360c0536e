"""Streamed text through a real tritonserver: the requests of one Triton sequence form one utterance."""

import itertools
import queue
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from qwen3_tts_client.protocol import SpeechRequest, TextPiece, encode
from tests.e2e.serving import Caller, eventually, pcm_of, serve

SAMPLES_PER_FRAME = 1920
ids = itertools.count(1)


class SequenceStream:
    """Sends the requests of one sequence on a gRPC stream and collects the responses."""

    def __init__(self, caller: Caller, sequence_id: int | str | None = None) -> None:
        self.sequence_id = next(ids) if sequence_id is None else sequence_id
        self.responses: queue.Queue[Any] = queue.Queue()
        self.errors: list[str] = []
        self.ends: list[str] = []
        self.pcm: list[np.ndarray] = []
        self.arrivals: list[int] = []
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = caller.stub.ModelStreamInfer(iter(self._outbox.get, None), timeout=60)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, text: str, name: str = "", *, start: bool = False, end: bool = False, **fields: Any) -> None:
        if start:
            fields = {"speaker": "ryan", "max_frames": 4000} | fields
        piece = TextPiece(self.sequence_id, start, end)
        self._outbox.put(encode(SpeechRequest(text, **fields), request_id=name, piece=piece))

    def finish(self) -> None:
        """Closes the request side and waits for all responses."""
        self._outbox.put(None)
        self._reader.join(60)
        assert not self._reader.is_alive()

    @property
    def frames(self) -> list[tuple[int, int]]:
        """(seed, number) of each received frame."""
        if not self.pcm:
            return []
        return [(int(a), int(b)) for a, b in np.concatenate(self.pcm).reshape(-1, SAMPLES_PER_FRAME)[:, :2]]

    def _read(self) -> None:
        try:
            for response in self.call:
                self._take(response)
        except grpc.RpcError:
            pass

    def _take(self, response: Any) -> None:
        if response.error_message:
            self.errors.append(response.error_message)
            return
        result = response.infer_response
        if len(pcm := pcm_of(response)):
            self.arrivals.append(time.perf_counter_ns())
            self.pcm.append(pcm)
        if result.parameters["triton_final_response"].bool_param:
            self.ends.append(result.id)


def test_first_request_receives_the_audio_and_each_request_ends_once(caller: Caller) -> None:
    stream = SequenceStream(caller)
    stream.send("Hello ", "first", start=True, seed=5, max_frames=30)
    for number in range(4):
        stream.send("more words ", f"more-{number}")
    stream.send("", "last", end=True)
    stream.finish()
    assert stream.errors == []
    assert sorted(stream.ends) == ["first", "last", *(f"more-{number}" for number in range(4))]
    assert stream.ends[-1] == "first"
    assert stream.frames == [(5, number) for number in range(30)]


@pytest.mark.timing
def test_audio_starts_before_the_third_of_words_sent_every_200_ms(caller: Caller) -> None:
    stream = SequenceStream(caller)
    sent: list[int] = []
    for word in ("The", " quick", " brown", " fox", " jumps."):
        options: dict[str, Any] = {} if sent else {"max_frames": 40}
        stream.send(word, start=not sent, **options)
        sent.append(time.perf_counter_ns())
        time.sleep(0.2)
    stream.send("", end=True)
    stream.finish()
    assert stream.errors == []
    after = [round((stream.arrivals[0] - at) / 1e6) for at in sent[:2]]
    print(f"first audio {after[0]} ms after the first word, {after[1]} after the second")
    assert stream.arrivals[0] < sent[2]


def test_stream_without_text_waits_without_delaying_others(caller: Caller) -> None:
    stream = SequenceStream(caller)
    stream.send("Hello you", start=True, seed=1, max_frames=60)
    eventually(lambda: len(stream.frames) > 0)
    time.sleep(0.3)
    stalled = len(stream.frames)
    assert stalled < 60
    other = caller.speak(seed=2, max_frames=20)
    assert len(other.samples) == 20 * SAMPLES_PER_FRAME
    assert len(stream.frames) == stalled
    stream.send(" there.", end=True)
    stream.finish()
    assert stream.frames == [(1, number) for number in range(60)]


def test_cancelled_sequences_free_their_slots(caller: Caller) -> None:
    stream, without_text = SequenceStream(caller), SequenceStream(caller)
    stream.send("Hello you", start=True, max_frames=60)
    without_text.send("", start=True)
    eventually(lambda: caller.metric("qwen3_tts_requests_open") == 2)
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 1)
    cancelled = caller.metric("qwen3_tts_requests_total", outcome="cancelled")
    stream.call.cancel()
    without_text.call.cancel()
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)
    eventually(lambda: caller.metric("qwen3_tts_requests_total", outcome="cancelled") == cancelled + 2)


def test_idle_sequence_is_cancelled(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    environment = scripted_environment | {"QWEN3_TTS_SEQUENCE_IDLE_SECONDS": "2.0"}
    with serve(scripted_repository, tmp_path, environment) as server, Caller(server) as caller:
        stream = SequenceStream(caller, "forgotten")
        stream.send("Hello you", start=True, max_frames=60)
        eventually(lambda: stream.errors != [])
        assert "CANCELLED: sequence_id: 'forgotten': neither text nor sequence_end for 2 s" in stream.errors[0]
        eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)
        stream.finish()


@pytest.mark.parametrize("sequence_id", [7_000, 2**63 - 1, "a-name"])
def test_sequence_id_can_be_reused_after_the_end(caller: Caller, sequence_id: int | str) -> None:
    for seed in (1, 2):
        stream = SequenceStream(caller, sequence_id)
        stream.send("Hello.", start=True, end=True, seed=seed, max_frames=9)
        stream.finish()
        assert (stream.errors, stream.frames) == ([], [(seed, number) for number in range(9)])


def test_pieces_of_white_space_are_accepted(caller: Caller) -> None:
    stream = SequenceStream(caller)
    stream.send(" \n", start=True, max_frames=9)
    stream.send("  ")
    stream.send("Hello.")
    stream.send("\t", end=True)
    stream.finish()
    assert (stream.errors, len(stream.frames)) == ([], 9)


NOT_OPEN = "not open: not started, or already ended"


def test_pieces_outside_an_open_sequence_are_rejected(caller: Caller) -> None:
    for end in (False, True):
        lost = SequenceStream(caller, 4711)
        lost.send("Hello.", end=end)
        lost.finish()
        [error] = lost.errors
        assert f"INVALID_ARG: sequence_id: 4711: {NOT_OPEN}" in error
    late = SequenceStream(caller, 4712)
    late.send("Hello.", start=True, end=True, max_frames=9)
    late.send(" And more.")
    late.finish()
    [error] = late.errors
    assert f"INVALID_ARG: sequence_id: 4712: {NOT_OPEN}" in error
    assert len(late.frames) == 9


def test_second_start_is_rejected_and_the_open_sequence_continues(caller: Caller) -> None:
    stream = SequenceStream(caller, 4713)
    stream.send("Hello ", start=True, max_frames=9)
    stream.send("again", start=True)
    stream.send(" you.", end=True)
    stream.finish()
    [error] = stream.errors
    assert "INVALID_ARG: sequence_id: 4713: in use: end its utterance first, or use another id" in error
    assert len(stream.frames) == 9


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (["Hello <|im_", "end|> you", ""], "INVALID_ARG: text: '<|im_end|>': control tokens are not allowed"),
        (["", "  ", "\n"], "INVALID_ARG: text: '': must contain more than white space"),
        (["1 " * 300, "1 " * 300, ""], "tokens, at most 1024 are allowed"),
    ],
    ids=["control-token", "white-space", "too-long"],
)
def test_invalid_text_ends_the_utterance_with_an_error(caller: Caller, pieces: list[str], message: str) -> None:
    stream = SequenceStream(caller)
    for number, piece in enumerate(pieces):
        stream.send(piece, start=number == 0, end=number == len(pieces) - 1)
    stream.finish()
    assert len([error for error in stream.errors if message in error]) == 2, stream.errors
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)


def test_voice_fields_after_the_first_request_are_rejected(caller: Caller) -> None:
    stream = SequenceStream(caller)
    stream.send("Hello ", start=True, max_frames=9)
    stream.send("you ", speaker="serena")
    stream.send("there.", end=True)
    stream.finish()
    [error] = stream.errors
    assert "INVALID_ARG: speaker: 'serena': allowed only on the first request of a sequence" in error
    assert len(stream.frames) == 9


def test_rejected_start_does_not_open_a_sequence(caller: Caller) -> None:
    stream = SequenceStream(caller)
    stream.send("Hello ", start=True, speaker="nobody")
    stream.send("you.", end=True)
    stream.finish()
    assert "INVALID_ARG: speaker: 'nobody'" in stream.errors[0]
    assert NOT_OPEN in stream.errors[1]


def test_sequence_without_an_id_is_rejected(caller: Caller) -> None:
    message = encode(SpeechRequest("Hello.", speaker="ryan"))
    message.parameters["sequence_start"].bool_param = True
    [response] = list(caller.stub.ModelStreamInfer(iter([message]), timeout=30))
    assert "INVALID_ARG: sequence_id: 0: sequence_start and sequence_end require one" in response.error_message
