"""Fuzzes sequence requests with random order, flags and text: each request ends once and no stream leaks."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qwen3_tts_client.protocol import SpeechRequest, TextPiece, encode
from scripts.server.tritonserver import TritonServer
from tests.e2e.serving import Caller, eventually, serve

pytestmark = pytest.mark.long

STREAMS = 8
ROUNDS = 12
REQUESTS = 25
SEQUENCE_IDS: tuple[int | str, ...] = (0, 1, 2, 3, "a", 2**63 - 1)
TEXTS = ["", " ", "Hello", " world.", "\n", "今天", "天气。", "1 2 3", "<|im_", "end|>", "é" * 300, "No end", "'s"]


@pytest.fixture(scope="module")
def scripted(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    quick = {"SCRIPTED_TICK_SECONDS": "0.001", "QWEN3_TTS_SEQUENCE_IDLE_SECONDS": "1", "QWEN3_TTS_MAX_STREAMS": "8"}
    environment = scripted_environment | quick | {"QWEN3_TTS_PART_TEXT_TOKENS": "20"}
    with serve(scripted_repository, tmp_path_factory.mktemp("server"), environment) as server:
        yield server


def random_request(rng: random.Random) -> Any:
    """A request with one of a few ids, so that sequences collide."""
    sequence_id = rng.choice(SEQUENCE_IDS)
    piece = TextPiece(sequence_id, start=rng.random() < 0.3, end=rng.random() < 0.2)
    fields: dict[str, Any] = {"speaker": "ryan", "max_frames": rng.choice([1, 9, 40, 5000])} if piece.start else {}
    if rng.random() < 0.05:
        fields |= {"seed": rng.randint(-2, 5)}
    return encode(SpeechRequest(rng.choice(TEXTS), **fields), request_id=str(rng.random()), piece=piece)


def send_random_requests(caller: Caller, rng: random.Random) -> list[str]:
    """Sends requests on one gRPC stream; returns the outcome of each."""
    requests = [random_request(rng) for _ in range(REQUESTS)]
    ends = []
    for response in caller.stub.ModelStreamInfer(iter(requests), timeout=60):
        if response.error_message:
            ends.append(response.error_message)
        elif response.infer_response.parameters["triton_final_response"].bool_param:
            ends.append("ok")
    return ends


def test_random_sequence_requests_end_once_and_leave_no_streams(caller: Caller) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        rounds = list(pool.map(lambda seed: send_random_requests(caller, random.Random(seed)), range(STREAMS * ROUNDS)))
    assert [len(ends) for ends in rounds] == [REQUESTS] * STREAMS * ROUNDS
    codes = {end.split(":")[0] for ends in rounds for end in ends}
    assert codes <= {"ok", "INVALID_ARG", "CANCELLED", "UNAVAILABLE"}, codes
    assert {"ok", "INVALID_ARG"} <= codes
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)
    assert caller.metric("qwen3_tts_requests_waiting") == 0
    received = caller.speak(seed=1, max_frames=9)
    assert (received.error, len(received.samples)) == (None, 9 * 1920)
