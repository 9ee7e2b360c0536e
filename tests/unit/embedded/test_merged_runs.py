"""The stand-in ONNX Runtime backend: merged runs and isolated failures."""

from typing import Any

import numpy as np
import pytest
import torch

from scripts.embedded.backends.tensorrt.merged_runs import Arrays, Input, InvalidInputError, MergingModel, limits

INPUTS = (Input("x", np.dtype(np.float32), (-1, -1)), Input("n", np.dtype(np.int32), (-1, 1), limits=(0, 9)))


class Doubler:
    """Doubles x and fails on negative numbers; records the batch size of each run."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, feeds: Arrays) -> Arrays:
        self.batches.append(len(feeds["x"]))
        if (feeds["x"] < 0).any():
            raise RuntimeError("negative")
        return {"y": 2 * feeds["x"], "m": feeds["n"] + 1}


def request(value: float, rows: int = 1, columns: int = 3) -> Arrays:
    return {"x": np.full((rows, columns), value, np.float32), "n": np.full((rows, 1), rows, np.int32)}


def merging(run: Doubler, batched: bool = True) -> MergingModel:
    return MergingModel(INPUTS, batched, run, np.concatenate)


def first(answer: Any) -> float:
    return float(answer["y"][0, 0])


def test_merges_equal_shapes_and_keeps_the_order_of_answers() -> None:
    run = Doubler()
    requests = [request(1), request(2, columns=5), request(3, rows=2), request(4, columns=5)]
    answers = merging(run).answer(requests)
    assert sorted(run.batches) == [2, 3]
    for given, answer in zip(requests, answers, strict=True):
        assert not isinstance(answer, Exception)
        np.testing.assert_array_equal(answer["y"], 2 * given["x"])
        np.testing.assert_array_equal(answer["m"], given["n"] + 1)


def test_merges_nothing_without_a_batch_dimension() -> None:
    run = Doubler()
    assert [first(a) for a in merging(run, batched=False).answer([request(1), request(2)])] == [2, 4]
    assert run.batches == [1, 1]


def test_only_the_request_that_fails_the_run_gets_an_error() -> None:
    good, bad, also_good = merging(Doubler()).answer([request(1), request(-1), request(3)])
    assert (first(good), first(also_good)) == (2, 6)
    assert isinstance(bad, RuntimeError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((1, 3), np.float16)}, "x: float16 [1, 3] given, float32 [-1, -1] expected"),
        ({"n": np.zeros((1, 2), np.int32)}, "n: int32 [1, 2] given, int32 [-1, 1] expected"),
        ({"n": np.zeros(1, np.int32)}, "n: int32 [1] given, int32 [-1, 1] expected"),
        ({"n": np.array([[10]], np.int32)}, "n: values from 10 to 10 given, must be 0 to 9"),
    ],
)
def test_refuses_only_the_malformed_request(change: Arrays, message: str) -> None:
    run = Doubler()
    refused, good = merging(run).answer([request(1) | change, request(2)])
    assert isinstance(refused, InvalidInputError)
    assert str(refused) == message
    assert first(good) == 4
    assert run.batches == [1]


def test_names_a_missing_input() -> None:
    [refused] = merging(Doubler()).answer([{"x": np.zeros((1, 3), np.float32)}])
    assert str(refused) == "n: missing, int32 [-1, 1] expected"


def test_merges_pytorch_tensors_like_arrays() -> None:
    inputs = (Input("x", torch.float16, (-1, 2)), Input("n", torch.int32, (-1, 1), limits=(0, 9)))
    model = MergingModel(inputs, True, lambda feeds: {"y": 2 * feeds["x"]}, torch.cat)
    good = {"x": torch.ones(2, 2, dtype=torch.float16), "n": torch.ones(2, 1, dtype=torch.int32)}
    answers = model.answer([good, good | {"n": good["n"] - 2}, good | {"x": good["x"].float()}, good])
    assert [isinstance(answer, InvalidInputError) for answer in answers] == [False, True, True, False]
    assert [tuple(answer["y"].shape) for answer in answers if isinstance(answer, dict)] == [(2, 2), (2, 2)]
    assert str(answers[2]).startswith("x: torch.float32 [2, 2] given, torch.float16 [-1, 2] expected")


def test_reads_limits_from_the_model_configuration() -> None:
    config = {"parameters": {"codes.range": {"string_value": "0..2047"}}}
    assert (limits(config, "codes"), limits(config, "state")) == ((0, 2047), None)
