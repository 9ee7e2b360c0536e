"""The code2wav model with ONNX Runtime, served by Triton's Python backend: rows, keys and malformed requests."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import (
    CODES,
    LINE,
    MAX_BATCH,
    MAX_FRAMES,
    NUM_ROWS,
    PCM,
    PLACES,
    PUBLIC_ROWS,
    ZERO_ROW,
)
from tests.e2e.codec import (
    ANSWER_SECONDS,
    FIRST_PUBLIC,
    MAX_HISTORY,
    NO_KEY,
    Codec,
    CodecStreams,
    ReferenceStreams,
    Tensors,
    is_denied,
    places,
    serve_codec,
)
from tests.e2e.serving import repository_with

# Largest difference between samples of calls of different shapes, and of PyTorch.
LEVELS = 2
# (rows, frames)
CALLS = ((64, 1), (1, 32), (7, 5), (2, 13), (64, 4), (3, 1), (1, 1), (8, 3), (32, 2), (7, 32), (2, 31), (1, 4))
NEIGHBOURS, MALFORMED_CALLS = 24, 3
CALLERS, OWN_STREAMS, OWN_CALLS = 4, 8, 12


@pytest.fixture(scope="module")
def codec(tiny_code2wav: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codec]:
    repository = repository_with(tiny_code2wav, tmp_path_factory.mktemp("codec"))
    with serve_codec(repository, tmp_path_factory.mktemp("server")) as codec:
        yield codec


@pytest.fixture(scope="module")
def step(tiny_checkpoint: Path) -> CodecStep:
    return CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint))).eval()


@pytest.fixture(scope="module")
def keys() -> Iterator[int]:
    """Owners own their rows until the server ends."""
    return count(1000)


def random_codes(seed: int, *shape: int) -> NDArray:
    return np.random.default_rng(seed).integers(0, 2048, (*shape, 16), np.int32)


def full(value: int, *shape: int) -> NDArray:
    return np.full(shape, value, np.int32)


def assert_same(found: NDArray, expected: NDArray) -> None:
    assert found.dtype == np.int16
    assert np.abs(expected.astype(int)).max() > 100
    np.testing.assert_allclose(found.astype(int), expected.astype(int), rtol=0, atol=LEVELS)


def test_rows_of_any_history_share_a_call(codec: Codec, step: CodecStep, keys: Iterator[int]) -> None:
    """Calls with a random subset of streams each, which differ in age."""
    draw, key = np.random.default_rng(0), next(keys)
    streams, reference = CodecStreams(codec, codec.claim(MAX_BATCH, key), key), ReferenceStreams(step, MAX_BATCH)
    for rows, frames in CALLS * 2:
        chosen = draw.choice(MAX_BATCH, rows, replace=False)
        codes = draw.integers(0, 2048, (rows, frames, 16), np.int32)
        assert_same(streams.advance(chosen, codes), reference.advance(chosen, codes))
    assert len(set(streams.history.tolist())) > 10


def test_a_long_stream_in_irregular_chunks_equals_the_step(codec: Codec, step: CodecStep, keys: Iterator[int]) -> None:
    codes, key = random_codes(1, 1, 8 * MAX_FRAMES), next(keys)
    found = CodecStreams(codec, codec.claim(1, key), key).speak(codes)
    reference = ReferenceStreams(step, 1)
    expected = [reference.advance(np.arange(1), chunk) for chunk in np.split(codes, 8, axis=1)]
    assert_same(found, np.concatenate(expected, axis=1))


def test_a_call_may_read_one_row_and_write_another(codec: Codec, step: CodecStep, keys: Iterator[int]) -> None:
    """The first chunks of streams after one reference do so."""
    key, one = next(keys), np.arange(1)
    row, *branches = codec.claim(3, key)
    reference, first, then = random_codes(2, 1, 5), random_codes(3, 2, 3), random_codes(4, 2, 2)
    codec.call({CODES: reference, PLACES: places(ZERO_ROW, row, 0, key)})
    found = [codec.call({CODES: first, PLACES: places(row, np.array(branches), 5, key)})[PCM]]
    found += [codec.call({CODES: then, PLACES: places(np.array(branches), np.array(branches), 8, key)})[PCM]]
    for stream, samples in enumerate(np.concatenate(found, axis=1)):
        parts = [reference[0], first[stream], then[stream]]
        expected = ReferenceStreams(step, 1).advance(one, np.concatenate(parts)[None])
        assert_same(samples, expected[0, 5 * 1920 :])


def test_callers_with_different_keys_do_not_affect_each_other(
    codec: Codec, step: CodecStep, keys: Iterator[int]
) -> None:
    def speak(key: int) -> None:
        draw = np.random.default_rng(key)
        streams = CodecStreams(codec, codec.claim(OWN_STREAMS, key), key)
        reference = ReferenceStreams(step, OWN_STREAMS)
        for _ in range(OWN_CALLS):
            chosen = draw.choice(OWN_STREAMS, draw.integers(1, OWN_STREAMS), replace=False)
            codes = draw.integers(0, 2048, (len(chosen), draw.integers(1, 9), 16), np.int32)
            assert_same(streams.advance(chosen, codes), reference.advance(chosen, codes))

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(speak, [next(keys) for _ in range(CALLERS)]))


def test_a_row_opens_only_for_its_owners_key(codec: Codec, step: CodecStep, keys: Iterator[int]) -> None:
    owner, other = next(keys), next(keys)
    codes, one = random_codes(5, 1, 12), np.arange(1)
    streams, reference = CodecStreams(codec, codec.claim(1, owner), owner), ReferenceStreams(step, 1)
    [row], [own] = streams.rows, codec.claim(1, other)
    assert row != own
    assert_same(streams.advance(one, codes[:, :4]), reference.advance(one, codes[:, :4]))
    for key in (other, NO_KEY):
        for before, after in ((ZERO_ROW, row), (row, row), (row, own), (row, FIRST_PUBLIC)):
            assert is_denied(codec.call(codec.request(places=places(before, after, 4, key)))[PCM]).all()
    assert_same(streams.advance(one, codes[:, 4:]), reference.advance(one, codes[:, 4:]))


def test_only_the_entries_of_a_call_that_are_denied_have_no_audio(
    codec: Codec, step: CodecStep, keys: Iterator[int]
) -> None:
    owner, key, codes = next(keys), next(keys), random_codes(6, 3, 4)
    [foreign] = codec.claim(1, owner)
    first, last = codec.claim(2, key)
    found = codec.call({CODES: codes, PLACES: places(ZERO_ROW, np.array([first, foreign, last]), 0, key)})[PCM]
    assert is_denied(found).tolist() == [False, True, False]
    assert_same(found[[0, 2]], ReferenceStreams(step, 2).advance(np.arange(2), codes[[0, 2]]))


def test_the_owner_keeps_its_rows_and_their_states_when_it_claims_them_again(
    codec: Codec, step: CodecStep, keys: Iterator[int]
) -> None:
    """A talker that was loaded again does so, while streams of its former self may be under way."""
    key, codes, every = next(keys), random_codes(7, 3, 9), np.arange(3)
    streams, reference = CodecStreams(codec, codec.claim(3, key), key), ReferenceStreams(step, 3)
    assert_same(streams.advance(every, codes[:, :4]), reference.advance(every, codes[:, :4]))
    np.testing.assert_array_equal(codec.claim(3, key), streams.rows)
    assert not set(codec.claim(3, next(keys)).tolist()) & set(streams.rows.tolist())
    assert_same(streams.advance(every, codes[:, 4:]), reference.advance(every, codes[:, 4:]))


def test_a_caller_without_a_key_can_use_the_public_rows_and_nobody_can_own_them(
    codec: Codec, step: CodecStep, keys: Iterator[int]
) -> None:
    public, every = FIRST_PUBLIC + np.arange(PUBLIC_ROWS), np.arange(PUBLIC_ROWS)
    codes, key = random_codes(8, PUBLIC_ROWS, 6), next(keys)
    streams, reference = CodecStreams(codec, public), ReferenceStreams(step, PUBLIC_ROWS)
    assert_same(streams.advance(every, codes[:, :2]), reference.advance(every, codes[:, :2]))
    claim = codec.request(PUBLIC_ROWS, places=places(public, public, 0, key))
    assert is_denied(codec.call(claim)[PCM]).all()
    assert_same(streams.advance(every, codes[:, 2:]), reference.advance(every, codes[:, 2:]))


def test_a_row_that_was_claimed_and_never_written_is_zero(codec: Codec, step: CodecStep, keys: Iterator[int]) -> None:
    codes, key = random_codes(9, 1, 3), next(keys)
    read, written = codec.claim(2, key)
    found = codec.call({CODES: codes, PLACES: places(read, written, 0, key)})[PCM]
    assert_same(found, ReferenceStreams(step, 1).advance(np.arange(1), codes))


def test_the_row_that_starts_streams_is_never_written(codec: Codec, keys: Iterator[int]) -> None:
    expected = codec.call(codec.request())[PCM]
    for key in (next(keys), NO_KEY):
        assert is_denied(codec.call(codec.request(places=places(ZERO_ROW, ZERO_ROW, 5, key)))[PCM]).all()
    np.testing.assert_array_equal(codec.call(codec.request())[PCM], expected)


@pytest.fixture(scope="module")
def neighbours(codec: Codec, keys: Iterator[int]) -> list[tuple[Tensors, NDArray]]:
    """Requests, and the samples of each."""
    key = next(keys)
    starts = [places(ZERO_ROW, row, 0, key) for row in codec.claim(NEIGHBOURS, key)]
    requests = [codec.request(codes=full(80 * i, 1, 2, 16), places=start) for i, start in enumerate(starts)]
    return [(request, codec.call(request)[PCM]) for request in requests]


Send = Callable[[Codec], Future[Tensors]]


def changed(**change: Any) -> Send:
    return lambda codec: codec.send(codec.request(**change))


def at(row: int, history: int = 0) -> Send:
    """Reads a row, and writes a public one."""
    return changed(places=places(row, FIRST_PUBLIC, history))


def without_places(codec: Codec) -> Future[Tensors]:
    return codec.send({CODES: codec.request()[CODES]})


def too_few_bytes(codec: Codec) -> Future[Tensors]:
    request = codec.request()
    return codec.send(request | {CODES: request[CODES][:, 1:]}, {CODES: request[CODES].shape})


# Triton's core rejects the first ones before they reach the model.
SHAPE = "unexpected shape for input '{}'"
DTYPE = "inference input '{}' data-type is 'INT64', but model 'code2wav' expects 'INT32'"
MALFORMED: dict[str, tuple[Send, str]] = {
    "65 rows": (lambda codec: codec.send(codec.request(MAX_BATCH + 1)), "batch-size must be <= 64"),
    "15 codebooks": (changed(codes=full(7, 1, 2, 15)), SHAPE.format(CODES)),
    "five places": (changed(places=full(0, 1, 5)), SHAPE.format(PLACES)),
    "rows that differ": (changed(places=full(0, 2, 4)), "batch size does not match other inputs"),
    "codes in INT64": (changed(codes=np.zeros((1, 2, 16), np.int64)), DTYPE.format(CODES)),
    "places in INT64": (changed(places=np.zeros((1, 4), np.int64)), DTYPE.format(PLACES)),
    "no places": (without_places, "expected 2 inputs but got 1 inputs for model 'code2wav'"),
    "too few bytes": (too_few_bytes, "input byte size mismatch for input 'codes'"),
    "33 frames": (
        lambda codec: codec.send(codec.request(1, MAX_FRAMES + 1)),
        "INVALID_ARG: codes: frames: 33 given, 1 to 32 expected",
    ),
    "no frames": (lambda codec: codec.send(codec.request(1, 0)), "INVALID_ARG: codes: frames: 0 given, 1 to 32 expect"),
    "code 2048": (changed(codes=full(2048, 1, 2, 16)), "INVALID_ARG: codes: 2048 given, 0 to 2047 expected"),
    "code -1": (changed(codes=full(-1, 1, 2, 16)), "INVALID_ARG: codes: -1 given, 0 to 2047 expected"),
    "a row too high": (at(NUM_ROWS), f"INVALID_ARG: places: rows: {NUM_ROWS} given, 0 to {NUM_ROWS - 1} expected"),
    "row -1": (at(-1), "INVALID_ARG: places: rows: -1 given, 0 to"),
    "history 72": (at(FIRST_PUBLIC, MAX_HISTORY + 1), "INVALID_ARG: places: history: 72 given, 0 to 71 expected"),
    "history -1": (at(FIRST_PUBLIC, -1), "INVALID_ARG: places: history: -1 given, 0 to 71 expected"),
    "a line of nobody": (
        lambda codec: codec.send(codec.request(), parameters={LINE: '{"note": [1, 0], "secret": "any"}'}),
        "INVALID_ARG: line: not an address issued by a talker",
    ),
}


@pytest.mark.parametrize(("send", "message"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_fails_alone_and_says_why(
    codec: Codec, neighbours: list[tuple[Tensors, NDArray]], send: Send, message: str
) -> None:
    valid, malformed = [], []
    for i, (request, expected) in enumerate(neighbours):
        if i % (NEIGHBOURS // MALFORMED_CALLS) == 2:
            malformed.append(send(codec))
        valid.append((codec.send(request), expected))
    for future, expected in valid:
        np.testing.assert_array_equal(future.result(ANSWER_SECONDS)[PCM], expected)
    for future in malformed:
        with pytest.raises(InferenceServerException) as rejected:
            future.result(ANSWER_SECONDS)
        assert message in str(rejected.value)
