"""The callers of scripts.benchmarks.mixed_calls, with a codec that decodes each frame by itself."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.codec.contract import CODES, HISTORY, NO_SAMPLE, PCM, PLACES, STATE, STATE_OUT, WAVEFORM
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
    """Stands in for Triton's client: records tensors and answers with a state of ones."""

    def __init__(self, inputs: dict[str, str]) -> None:
        self.inputs, self.calls = inputs, list[dict[str, np.ndarray]]()

    def __call__(self, url: str) -> "FakeServer":
        return self

    def get_model_metadata(self, model: str) -> Any:
        return SimpleNamespace(inputs=[SimpleNamespace(name=name, datatype=dt) for name, dt in self.inputs.items()])

    def infer(self, model: str, inputs: list[Any], outputs: list[Any]) -> Any:
        assert {tensor.name(): tensor.datatype() for tensor in inputs} == self.inputs
        content = {tensor.name(): np.frombuffer(tensor._raw_content, DTYPES[tensor.datatype()]) for tensor in inputs}
        self.calls.append({tensor.name(): content[tensor.name()].reshape(tensor.shape()) for tensor in inputs})
        rows, frames, _ = self.calls[-1][CODES].shape
        answer = {WAVEFORM: np.zeros((rows, 1920 * frames), np.float32), PCM: np.zeros((rows, 1920 * frames), np.int16)}
        if STATE in self.inputs:
            answer[STATE_OUT] = np.ones_like(self.calls[-1][STATE])
        assert {output.name() for output in outputs} <= answer.keys()
        return SimpleNamespace(as_numpy=answer.__getitem__)


DTYPES = {"INT32": np.int32, "FP16": np.float16, "FP32": np.float32}
ONE_CODE, START, CONTINUE = np.zeros((1, 1, 16), np.int32), (0, 5, 0, 9), (5, 5, 1, 9)


def call_twice(server: FakeServer, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mixed_calls, "InferenceServerClient", server)
    call = connect("any", state_size=3)
    for place in (START, CONTINUE):
        pcm = call(ONE_CODE, np.array([place], np.int32))
        assert (pcm.dtype, pcm.shape) == (np.int16, (1, 1920))


def test_a_codec_with_rows_gets_places(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer({CODES: "INT32", PLACES: "INT32"})
    call_twice(server, monkeypatch)
    assert [call[PLACES].tolist() for call in server.calls] == [[list(START)], [list(CONTINUE)]]


@pytest.mark.parametrize("dtype", ["FP16", "FP32"])
def test_a_tensorrt_plan_gets_states_of_its_type_and_their_history(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer({CODES: "INT32", STATE: dtype, HISTORY: "INT32"})
    call_twice(server, monkeypatch)
    assert [call[STATE].tolist() for call in server.calls] == [[[0, 0, 0]], [[1, 1, 1]]]
    assert [call[HISTORY].tolist() for call in server.calls] == [[[0]], [[1]]]
