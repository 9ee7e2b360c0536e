"""The code2wav model, served by the stand-in for Triton's ONNX Runtime backend and by the real one."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from export.agreement import compare
from export.verify import IRREGULAR_CHUNKS
from qwen3_tts_engine.codec.contract import CODES, HISTORY, MAX_BATCH, MAX_FRAMES, STATE, STATE_OUT, WAVEFORM
from tests.e2e.codec import ANSWER_SECONDS, Codec, Tensors, serve_codec
from tests.e2e.serving import real_backend, repository_with

OPTIONS = ("--model-config-name=onnxruntime",)
BACKENDS = ("stand_in", "real")
# One INT16 step of a waveform with full scale 1.
LSB = 1 / 32767
STATE_SNR_DB = 60.0
MAX_HISTORY = 71
# (rows, frames)
CALLS = ((64, 1), (1, 32), (7, 5), (2, 13), (64, 4), (3, 1), (1, 1), (8, 3), (32, 2), (7, 32), (2, 31), (1, 4))
# A batch with more rows than the long call contains merged calls.
LONG_CALL = (4, 32)
NEIGHBOURS, MALFORMED_CALLS, ROUNDS = 24, 3, 20


@pytest.fixture(scope="module")
def repository(tiny_code2wav: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository_with(tiny_code2wav, tmp_path_factory.mktemp("codec"))


@pytest.fixture(scope="module")
def stand_in(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codec]:
    with serve_codec(repository, tmp_path_factory.mktemp("stand_in"), OPTIONS) as codec:
        yield codec


@pytest.fixture(scope="module")
def real(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codec]:
    backends = [real_backend("onnxruntime")]
    with serve_codec(repository, tmp_path_factory.mktemp("real"), OPTIONS, backends) as codec:
        yield codec


class Malformed(NamedTuple):
    """A call and the error message of each backend; None if the call succeeds."""

    send: Callable[[Codec], Future[Tensors]]
    stand_in: str | None
    real: str | None


def changed(**change: NDArray) -> Callable[[Codec], Future[Tensors]]:
    return lambda codec: codec.send(codec.request(**change))


def too_few_bytes(codec: Codec) -> Future[Tensors]:
    request = codec.request()
    return codec.send(request | {STATE: request[STATE][:, 1:]}, {STATE: request[STATE].shape})


def not_a_number(codec: Codec) -> Future[Tensors]:
    return codec.send(codec.request(state=np.full((1, codec.manifest.state_size), np.nan, np.float32)))


def full(value: int, *shape: int) -> NDArray:
    return np.full(shape, value, np.int32)


# Triton's core rejects these before they reach a backend.
SHAPE = "unexpected shape for input '{}'"
DTYPE = "inference input '{}' data-type is '{}', but model 'code2wav' expects '{}'"
REJECTED_BY_TRITON = {
    "65 rows": (lambda codec: codec.send(codec.request(MAX_BATCH + 1)), "batch-size must be <= 64"),
    "15 codebooks": (changed(codes=full(7, 1, 2, 15)), SHAPE.format(CODES)),
    "two histories": (changed(history=full(0, 1, 2)), SHAPE.format(HISTORY)),
    "rows that differ": (changed(history=full(0, 2, 1)), "input 'history' batch size does not match other inputs"),
    "state in FP16": (changed(state=np.zeros((1, 5), np.float16)), DTYPE.format(STATE, "FP16", "FP32")),
    "codes in INT64": (changed(codes=np.zeros((1, 2, 16), np.int64)), DTYPE.format(CODES, "INT64", "INT32")),
    "too few bytes": (too_few_bytes, "input byte size mismatch for input 'state'"),
}
# The model file fixes the state size; the number of frames is checked when it runs.
TOO_LONG = MAX_FRAMES + 1
REJECTED_BY_BACKEND = {
    "33 frames": Malformed(
        lambda codec: codec.send(codec.request(1, TOO_LONG)), "ONNXRuntimeError", "onnx runtime error"
    ),
    "no frames": Malformed(lambda codec: codec.send(codec.request(1, 0)), "ONNXRuntimeError", "onnx runtime error"),
    "small state": Malformed(
        changed(state=np.zeros((1, 5), np.float32)),
        r"state: float32 \[1, 5\] given, float32 \[-1, \d+\] expected",
        "onnx runtime error",
    ),
    "large state": Malformed(
        changed(state=np.zeros((1, 10**5), np.float32)), r"state: float32 \[1, 100000\] given", "onnx runtime error"
    ),
}
VALUES = {
    "code 2048": Malformed(changed(codes=full(2048, 1, 2, 16)), "codes: .* 2048 given, must be 0 to 2047", None),
    "code -1": Malformed(changed(codes=full(-1, 1, 2, 16)), "codes: values from -1 to -1 given, must be", None),
    "history 72": Malformed(changed(history=full(72, 1, 1)), "history: .* 72 given, must be 0 to 71", None),
    "history -1": Malformed(changed(history=full(-1, 1, 1)), "history: .* -1 given, must be 0 to 71", None),
    "state of NaN": Malformed(not_a_number, None, None),
}
MALFORMED = {name: Malformed(send, error, error) for name, (send, error) in REJECTED_BY_TRITON.items()}
MALFORMED |= REJECTED_BY_BACKEND | VALUES


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED)
def test_malformed_call_does_not_affect_its_batch(
    request: pytest.FixtureRequest, backend: str, malformed: Malformed
) -> None:
    codec: Codec = request.getfixturevalue(backend)
    message: str | None = getattr(malformed, backend)
    requests = [codec.request(codes=full(80 * i, 1, 2, 16)) for i in range(NEIGHBOURS)]
    alone = [codec.call(request) for request in requests]
    for _ in range(ROUNDS):
        before = codec.batches()
        neighbours, rejected = send_batch(codec, requests, malformed.send)
        for future, expected in zip(neighbours, alone, strict=True):
            assert_same(future.result(ANSWER_SECONDS), expected)
        for future in rejected:
            assert_outcome(future, message)
        if any(rows > LONG_CALL[0] for rows in codec.batches() - before):
            return
    pytest.fail("the server merged no calls into a batch")


def send_batch(
    codec: Codec, requests: list[Tensors], send_malformed: Callable[[Codec], Future[Tensors]]
) -> tuple[list[Future[Tensors]], list[Future[Tensors]]]:
    """Queues valid and malformed calls behind a long one, so that Triton batches them."""
    codec.send(codec.request(*LONG_CALL))
    valid, malformed = [], []
    for i, request in enumerate(requests):
        if i % (NEIGHBOURS // MALFORMED_CALLS) == 2:
            malformed.append(send_malformed(codec))
        valid.append(codec.send(request))
    return valid, malformed


def assert_outcome(future: Future[Tensors], message: str | None) -> None:
    if message is None:
        future.result(ANSWER_SECONDS)
    else:
        with pytest.raises(InferenceServerException, match=message):
            future.result(ANSWER_SECONDS)


@pytest.mark.parametrize(
    ("given", "clamped"),
    [
        ({CODES: full(5000, 1, 2, 16)}, {CODES: full(2047, 1, 2, 16)}),
        ({CODES: full(-1, 1, 2, 16)}, {CODES: full(0, 1, 2, 16)}),
        ({HISTORY: full(-1, 1, 1)}, {HISTORY: full(0, 1, 1)}),
        ({HISTORY: full(5000, 1, 1)}, {HISTORY: full(MAX_HISTORY, 1, 1)}),
    ],
)
def test_real_backend_clamps_values_out_of_range(real: Codec, given: Tensors, clamped: Tensors) -> None:
    assert_same(real.call(real.request(**given)), real.call(real.request(**clamped)))


def test_real_backend_agrees_with_the_stand_in(stand_in: Codec, real: Codec) -> None:
    calls = list(calls_of_streams(stand_in))
    for request, expected in calls:
        assert_same(real.call(request), expected)
    random.Random(0).shuffle(calls)
    requests, answers = zip(*calls, strict=True)
    for codec in (stand_in, real):
        for found, expected in zip(codec.call_concurrently(requests), answers, strict=True):
            assert_same(found, expected)


def calls_of_streams(codec: Codec) -> Iterator[tuple[Tensors, Tensors]]:
    """Requests and responses of calls with a random subset of streams each, which differ in age."""
    draw = np.random.default_rng(0)
    states, history = np.zeros((MAX_BATCH, codec.manifest.state_size), np.float32), np.zeros((MAX_BATCH, 1), np.int32)
    for rows, frames in CALLS * 2:
        streams = draw.choice(MAX_BATCH, rows, replace=False)
        codes = draw.integers(0, 2048, (rows, frames, 16), np.int32)
        request = {CODES: codes, STATE: states[streams], HISTORY: history[streams]}
        answer = codec.call(request)
        yield request, answer
        states[streams] = answer[STATE_OUT]
        history[streams] = np.minimum(history[streams] + frames, MAX_HISTORY)


def test_real_backend_agrees_with_the_stand_in_over_a_long_stream(stand_in: Codec, real: Codec) -> None:
    codes = np.random.default_rng(1).integers(0, 2048, (1, 8 * MAX_FRAMES, 16), np.int32)
    expected, found = utterance(stand_in, codes), utterance(real, codes)
    assert expected.shape == (1, 1920 * 8 * MAX_FRAMES)
    np.testing.assert_allclose(found, expected, rtol=0, atol=LSB)


def utterance(codec: Codec, codes: NDArray) -> NDArray:
    """Decodes one stream in irregular chunks, with its own states."""
    waveforms, start, state = [], 0, codec.request()[STATE]
    for frames in cycle(IRREGULAR_CHUNKS):
        chunk, history = codes[:, start : start + frames], full(min(start, MAX_HISTORY), 1, 1)
        answer = codec.call({CODES: chunk, STATE: state, HISTORY: history})
        waveforms.append(answer[WAVEFORM])
        start, state = start + frames, answer[STATE_OUT]
        if start >= codes.shape[1]:
            return np.concatenate(waveforms, axis=1)
    raise AssertionError


def assert_same(found: Tensors, expected: Tensors) -> None:
    np.testing.assert_allclose(found[WAVEFORM], expected[WAVEFORM], rtol=0, atol=LSB)
    states = (torch.tensor(answer[STATE_OUT]) for answer in (expected, found))
    assert compare(*states).snr_db >= STATE_SNR_DB
