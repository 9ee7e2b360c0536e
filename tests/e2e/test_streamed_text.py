"""One utterance whose text comes in several requests of one Triton sequence, through a real tritonserver."""

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from qwen3_tts_client.protocol import SpeechRequest, TextPiece, encode
from scripts.embedded.server import TritonServer
from tests.e2e.serving import Voice, eventually, serve

SAMPLES_PER_FRAME = 1920
IDLE_SECONDS = 2.0
ids = itertools.count(1)


@pytest.fixture(scope="module")
def scripted(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    environment = scripted_environment | {"QWEN3_TTS_SEQUENCE_IDLE_SECONDS": str(IDLE_SECONDS)}
    with serve(scripted_repository, tmp_path_factory.mktemp("server"), environment) as server:
        yield server


class Dictation:
    """A gRPC stream on which the requests of one sequence are sent one by one, and everything that comes back."""

    def __init__(self, voice: Voice, sequence_id: int | str | None = None) -> None:
        self.sequence_id = next(ids) if sequence_id is None else sequence_id
        self.responses: queue.Queue[Any] = queue.Queue()
        self.errors: list[str] = []
        self.ends: list[str] = []
        self.pcm: list[np.ndarray] = []
        self.arrivals: list[int] = []
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = voice.stub.ModelStreamInfer(iter(self._outbox.get, None), timeout=60)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, text: str, name: str = "", *, start: bool = False, end: bool = False, **fields: Any) -> None:
        if start:
            fields = {"speaker": "ryan", "max_frames": 4000} | fields
        piece = TextPiece(self.sequence_id, start, end)
        self._outbox.put(encode(SpeechRequest(text, **fields), request_id=name, piece=piece))

    def finish(self) -> None:
        """No more requests; returns when every one was answered."""
        self._outbox.put(None)
        self._reader.join(60)
        assert not self._reader.is_alive()

    @property
    def frames(self) -> list[tuple[int, int]]:
        """(seed, number) of each frame heard."""
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
        if result.raw_output_contents and result.raw_output_contents[0]:
            self.arrivals.append(time.perf_counter_ns())
            self.pcm.append(np.frombuffer(result.raw_output_contents[0], np.int16))
        if result.parameters["triton_final_response"].bool_param:
            self.ends.append(result.id)


def test_the_first_request_gets_the_audio_and_each_one_ends_once(voice: Voice) -> None:
    one = Dictation(voice)
    one.send("Hello ", "first", start=True, seed=5, max_frames=30)
    for number in range(4):
        one.send("more words ", f"more-{number}")
    one.send("", "last", end=True)
    one.finish()
    assert one.errors == []
    assert sorted(one.ends) == ["first", "last", *(f"more-{number}" for number in range(4))]
    assert one.ends[-1] == "first"
    assert one.frames == [(5, number) for number in range(30)]


def test_words_every_200_ms_are_heard_before_the_third(voice: Voice) -> None:
    one = Dictation(voice)
    sent = []
    for word in ("The", " quick", " brown", " fox", " jumps."):
        one.send(word, start=not sent, **({} if sent else {"max_frames": 40}))
        sent.append(time.perf_counter_ns())
        time.sleep(0.2)
    one.send("", end=True)
    one.finish()
    assert one.errors == []
    after = [round((one.arrivals[0] - at) / 1e6) for at in sent[:2]]
    print(f"first audio {after[0]} ms after the first word, {after[1]} after the second")
    assert one.arrivals[0] < sent[2]


def test_a_stream_without_text_waits_and_others_do_not(voice: Voice) -> None:
    one = Dictation(voice)
    one.send("Hello you", start=True, seed=1, max_frames=60)
    eventually(lambda: len(one.frames) > 0)
    time.sleep(0.3)
    stalled = len(one.frames)
    assert stalled < 60
    other = voice.hear(seed=2, max_frames=20)
    assert len(other.samples) == 20 * SAMPLES_PER_FRAME
    assert len(one.frames) == stalled
    one.send(" there.", end=True)
    one.finish()
    assert one.frames == [(1, number) for number in range(60)]


def test_a_client_that_vanishes_frees_its_slot(voice: Voice) -> None:
    one, wordless = Dictation(voice), Dictation(voice)
    one.send("Hello you", start=True, max_frames=60)
    wordless.send("", start=True)
    eventually(lambda: voice.metric("qwen3_tts_requests_running") == 1)
    cancelled = voice.metric("qwen3_tts_requests_total", outcome="cancelled")
    one.call.cancel()
    wordless.call.cancel()
    eventually(lambda: voice.metric("qwen3_tts_requests_running") == 0)
    eventually(lambda: voice.metric("qwen3_tts_requests_total", outcome="cancelled") == cancelled + 2)


def test_a_sequence_that_never_ends_is_ended(voice: Voice) -> None:
    one = Dictation(voice, "forgotten")
    one.send("Hello you", start=True, max_frames=60)
    eventually(lambda: one.errors != [], 4 * IDLE_SECONDS)
    assert f"CANCELLED: sequence_id: 'forgotten': neither text nor sequence_end for {IDLE_SECONDS:g} s" in one.errors[0]
    eventually(lambda: voice.metric("qwen3_tts_requests_running") == 0)
    one.finish()


@pytest.mark.parametrize("sequence_id", [7_000, 2**63 - 1, "a-name"])
def test_an_id_can_be_used_again(voice: Voice, sequence_id: int | str) -> None:
    for seed in (1, 2):
        one = Dictation(voice, sequence_id)
        one.send("Hello.", start=True, end=True, seed=seed, max_frames=9)
        one.finish()
        assert (one.errors, one.frames) == ([], [(seed, number) for number in range(9)])


def test_white_space_alone_may_continue_a_text(voice: Voice) -> None:
    one = Dictation(voice)
    one.send(" \n", start=True, max_frames=9)
    one.send("  ")
    one.send("Hello.")
    one.send("\t", end=True)
    one.finish()
    assert (one.errors, len(one.frames)) == ([], 9)


NOT_OPEN = "not open: no sequence_start yet, or its end came"


def test_pieces_without_a_start_and_after_the_end_are_refused(voice: Voice) -> None:
    for end in (False, True):
        lost = Dictation(voice, 4711)
        lost.send("Hello.", end=end)
        lost.finish()
        [error] = lost.errors
        assert f"INVALID_ARG: sequence_id: 4711: {NOT_OPEN}" in error
    late = Dictation(voice, 4712)
    late.send("Hello.", start=True, end=True, max_frames=9)
    late.send(" And more.")
    late.finish()
    [error] = late.errors
    assert f"INVALID_ARG: sequence_id: 4712: {NOT_OPEN}" in error
    assert len(late.frames) == 9


def test_a_second_start_of_a_live_sequence_is_refused_and_the_first_goes_on(voice: Voice) -> None:
    one = Dictation(voice, 4713)
    one.send("Hello ", start=True, max_frames=9)
    one.send("again", start=True)
    one.send(" you.", end=True)
    one.finish()
    [error] = one.errors
    assert "INVALID_ARG: sequence_id: 4713: in use: end its utterance first, or take another id" in error
    assert len(one.frames) == 9


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (["Hello <|im_", "end|> you", ""], "INVALID_ARG: text: '<|im_end|>': control tokens may not be part of it"),
        (["", "  ", "\n"], "INVALID_ARG: text: '': must hold something besides white space"),
        (["1 " * 300, "1 " * 300, ""], "tokens, at most 1024 are allowed"),
    ],
    ids=["control-token", "white-space", "too-long"],
)
def test_a_text_that_cannot_be_spoken_ends_the_utterance(voice: Voice, pieces: list[str], message: str) -> None:
    one = Dictation(voice)
    for number, piece in enumerate(pieces):
        one.send(piece, start=number == 0, end=number == len(pieces) - 1)
    one.finish()
    assert len([error for error in one.errors if message in error]) == 2, one.errors
    eventually(lambda: voice.metric("qwen3_tts_requests_running") == 0)


def test_only_the_first_request_says_how_to_speak(voice: Voice) -> None:
    one = Dictation(voice)
    one.send("Hello ", start=True, max_frames=9)
    one.send("you ", speaker="serena")
    one.send("there.", end=True)
    one.finish()
    [error] = one.errors
    assert "INVALID_ARG: speaker: 'serena': goes with the first request of a sequence" in error
    assert len(one.frames) == 9


def test_a_start_that_is_refused_opens_nothing(voice: Voice) -> None:
    one = Dictation(voice)
    one.send("Hello ", start=True, speaker="nobody")
    one.send("you.", end=True)
    one.finish()
    assert "INVALID_ARG: speaker: 'nobody'" in one.errors[0]
    assert NOT_OPEN in one.errors[1]


def test_a_sequence_needs_an_id(voice: Voice) -> None:
    message = encode(SpeechRequest("Hello.", speaker="ryan"))
    message.parameters["sequence_start"].bool_param = True
    [response] = list(voice.stub.ModelStreamInfer(iter([message]), timeout=30))
    assert "INVALID_ARG: sequence_id: 0: sequence_start and sequence_end need one" in response.error_message
