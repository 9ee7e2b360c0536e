"""The callers of scripts.benchmarks.mixed_calls, with a codec that decodes each frame by itself."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.codec.contract import CODES, NO_SAMPLE, PCM, PLACES
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.request import RequestError
from scripts.benchmarks import mixed_calls
from scripts.benchmarks.mixed_calls import Caller, Outcome, connect, run
from tests.fakes.scripted import scripted_pcm

UTTERANCES = np.random.default_rng(0).integers(0, 2048, (3, 90, 16), np.int32)
GOLDEN = Golden(UTTERANCES, scripted_pcm(UTTERANCES), 30.0, "any")
WINDOW, CALLS = 71, 200


class FakeCodec:
    """Checks that every chunk follows the one before it in its row; every `every`-th call of a chunk is `spoiled`."""

    def __init__(self, every: int = 0, fails: bool = False, mark: tuple[int, int] | None = None) -> None:
        self.calls, self.spoiled = 0, 0
        self.decoded: dict[int, int] = {}
        self.keys: set[int] = set()
        self.denied = False
        self._every, self._fails, self._mark = every, fails, mark

    def __call__(self, codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        before, after, history, key = places.T
        self.keys |= set(key.tolist())
        pcm = scripted_pcm(codes)
        if ((before == after) & (history == 0)).all():
            pcm[:, :2] = NO_SAMPLE if self.denied else 0
            return pcm
        self.calls += 1
        assert len(set(after.tolist())) == len(after)
        for row, (read, written) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
            assert read in (0, written)
            start = self.decoded[read] if read else 0
            assert history[row] == min(start, WINDOW)
            self.decoded[written] = start + codes.shape[1]
        if self._every and self.calls % self._every == 0:
            self.spoiled += 1
            if self._fails:
                raise RequestError("injected")
            pcm[0, :2] = self._mark or pcm[0, :2] + 5000
        return pcm


def make(codec: FakeCodec) -> Outcome:
    return Caller(codec, GOLDEN, WINDOW, seed=1).make(CALLS)


def test_right_answers_are_neither_wrong_nor_errors() -> None:
    codec = FakeCodec()
    outcome = make(codec)
    assert (outcome.calls, codec.calls) == (CALLS, CALLS)
    assert (outcome.errors, outcome.wrong) == ([], [])
    assert len(codec.decoded) > 32, "most streams are called"
    assert max(codec.decoded.values()) > WINDOW


def test_each_wrong_answer_is_counted_once_with_its_shape() -> None:
    codec = FakeCodec(every=10)
    outcome = make(codec)
    assert outcome.errors == []
    assert len(outcome.wrong) == codec.spoiled == CALLS // 10
    assert all(" dB" in wrong and "x" in wrong for wrong in outcome.wrong)
    assert outcome.worst_db < GOLDEN.snr_db


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ({"fails": True}, "injected"),
        ({"mark": (NO_SAMPLE, 0)}, "no finite audio"),
        ({"mark": (NO_SAMPLE, NO_SAMPLE)}, "to another caller"),
    ],
    ids=["call", "overflow", "denied"],
)
def test_each_call_that_fails_is_an_error_and_its_streams_start_again(failure: dict[str, Any], reason: str) -> None:
    codec = FakeCodec(every=10, **failure)
    outcome = make(codec)
    assert len(outcome.errors) == codec.spoiled == CALLS // 10
    assert all(reason in error for error in outcome.errors)
    assert outcome.wrong == []


def test_calls_are_shared_out_and_each_caller_has_a_key_of_its_own() -> None:
    codecs = [FakeCodec() for _ in range(3)]
    outcome = run([Caller(codec, GOLDEN, WINDOW, seed) for seed, codec in enumerate(codecs)], 20)
    assert outcome.calls == 20
    assert [codec.calls for codec in codecs] == [7, 7, 6]
    [first], [second], [third] = (codec.keys for codec in codecs)
    assert len({first, second, third}) == 3
    assert 0 not in (first, second, third)


def test_a_codec_without_rows_is_refused() -> None:
    codec = FakeCodec()
    codec.denied = True
    with pytest.raises(RequestError, match="0 of 64 rows left"):
        Caller(codec, GOLDEN, WINDOW, seed=1)


class FakeServer:
    """Stands in for Triton's client: records tensors and answers with silence, a plan's two samples an element."""

    def __init__(self, dtype: type[np.signedinteger[Any]]) -> None:
        self.calls: list[dict[str, np.ndarray]] = []
        self._dtype = dtype

    def __call__(self, url: str) -> "FakeServer":
        return self

    def infer(self, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
        assert {tensor.datatype() for tensor in inputs} == {"INT32"}
        content = {tensor.name(): np.frombuffer(tensor._raw_content, np.int32) for tensor in inputs}
        self.calls.append({tensor.name(): content[tensor.name()].reshape(tensor.shape()) for tensor in inputs})
        rows, frames, _ = self.calls[-1][CODES].shape
        assert [output.name() for output in outputs] == [PCM]
        samples = np.zeros((rows, 1920 * frames), np.int16).view(self._dtype)
        return SimpleNamespace(as_numpy=lambda name: samples)


START, CONTINUE = (0, 5, 0, 9), (5, 5, 1, 9)


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_calls_of_every_executor_give_samples(
    dtype: type[np.signedinteger[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(dtype)
    monkeypatch.setattr(mixed_calls, "InferenceServerClient", server)
    call = connect("any")
    for place in (START, CONTINUE):
        pcm = call(np.zeros((1, 1, 16), np.int32), np.array([place], np.int32))
        assert (pcm.dtype, pcm.shape) == (np.int16, (1, 1920))
    assert [call[PLACES].tolist() for call in server.calls] == [[list(START)], [list(CONTINUE)]]
