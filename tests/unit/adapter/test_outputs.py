"""Tensors of a request's responses."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.core.streams import FinishReason, Summary

UTILITIES = SimpleNamespace(
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    TritonError=SimpleNamespace(INVALID_ARG=1, CANCELLED=2),
    Tensor=lambda name, values: (name, values),
    InferenceResponse=list,
)
OF_ALL = {"finish_reason": [b"length"], "usage": [5, 7, 20, 960]}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, {}),
        ({"spoken_share": 0.0}, {"spoken_share": [0.0]}),
        ({"words": ("{}",), "spoken_share": 0.5}, {"words": [b"{}"], "spoken_share": [0.5]}),
    ],
)
def test_a_summary_has_word_times_only_if_they_are_known(
    adapter: Callable[..., Any], told: dict[str, Any], expected: dict[str, Any]
) -> None:
    outputs = dict(adapter("responses", UTILITIES)._outputs(Summary(FinishReason.LENGTH, 5, 7, 20, 960, **told)))
    assert {name: values.tolist() for name, values in outputs.items()} == OF_ALL | expected
    assert outputs["usage"].dtype == np.int32


@pytest.mark.parametrize(("words", "names"), [([], ["waveform"]), (["{}"], ["waveform", "words"])])
def test_a_chunk_has_words_only_if_some_begin_or_end_in_it(
    adapter: Callable[..., Any], words: list[str], names: list[str]
) -> None:
    sent = list[list[tuple[str, np.ndarray]]]()
    sink = adapter("responses", UTILITIES).ResponseSink(SimpleNamespace(send=sent.append), watcher=None)
    for _ in range(2):
        sink.send(np.zeros(1920, np.int16), words)
    first, second = ([name for name, _ in outputs] for outputs in sent)
    # The first one has the rate, too.
    assert second == names
    assert set(first) == {*names, "sample_rate"}
