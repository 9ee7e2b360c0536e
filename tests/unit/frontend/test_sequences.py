"""Sequences are open until their utterance ends; text that waits for a voice is bounded."""

import threading
import time
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.frontend import sequences as module
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.sequences import Sequences
from qwen3_tts_engine.request import InvalidRequest, RequestError, SpeechOptions
from qwen3_tts_engine.voice import Voice
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener

REQUEST = SpeechOptions()


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


def begin(sequences: Sequences, sequence: module.Sequence, sink: Listener) -> Any:
    """Returns the sink that the engine receives."""
    sequences.begin(sequence, REQUEST, sink, "key", 0.0)
    [(_, wrapped, _), _] = sequences._prompts.streamed.call_args  # type: ignore[attr-defined]
    return wrapped


def make_sequences(max_characters: int = 100) -> Sequences:
    return Sequences(MagicMock(), MagicMock(), idle_seconds=60, max_characters=max_characters)


def test_an_abandoned_sequence_reports_its_error_before_it_is_closed() -> None:
    sequences = make_sequences()
    sequence = sequences.open(7, "Hello ", last=False)
    notifying, notified = threading.Event(), threading.Event()

    def notify() -> None:
        notifying.set()
        time.sleep(0.1)
        notified.set()

    failing = threading.Thread(target=sequences.abandon, args=(sequence, notify))
    failing.start()
    notifying.wait()
    with pytest.raises(InvalidRequest, match="sequence_id: 7: not open"):
        sequences.append(7, "there.", last=True)
    assert notified.is_set()
    failing.join()
    sequences.open(7, "Again.", last=True)


@pytest.mark.parametrize("error", [None, RequestError("cancelled")])
def test_closes_a_sequence_when_its_utterance_ends(error: RequestError | None) -> None:
    sequences = make_sequences()
    listener = Listener()
    sink = begin(sequences, sequences.open(7, "Hello ", last=False), listener)
    with pytest.raises(InvalidRequest, match="in use"):
        sequences.open(7, "Again.", last=False)
    sink.send(np.zeros(4, np.int16))
    sink.finish(error)
    assert (len(listener.pcm), listener.ends, listener.error) == (1, 1, error)
    assert sequences._open == {}
    with pytest.raises(InvalidRequest, match="not open"):
        sequences.append(7, "there.", last=False)
    sequences.open(7, "Again.", last=False)


def test_empty_pieces_do_not_keep_a_sequence_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    sequences = make_sequences()
    engine = sequences._engine
    for sequence_id in ("silent", "talking"):
        begin(sequences, sequences.open(sequence_id, "Hello ", last=False), Listener())
    for _ in range(4):
        clock.now += 20
        sequences.append("silent", "", last=False)
        sequences.append("talking", "more ", last=False)
        sequences.expire()
    [((_, error), _)] = engine.fail.call_args_list[:1]  # type: ignore[attr-defined]
    assert "'silent': neither text nor sequence_end for 60 s" in str(error)
    assert {"talking"} == {id for id, sequence in sequences._open.items() if sequence.last_text_at > clock.now - 60}


def test_limits_text_that_waits_for_a_voice() -> None:
    sequences = make_sequences(max_characters=100)
    sequence = sequences.open(7, "Hello ", last=False)
    for _ in range(1000):
        sequences.append(7, "", last=False)
    sequences.append(7, "w" * 90, last=False)
    for text in ("w" * 5_000_000, "more"):
        with pytest.raises(InvalidRequest, match="at most 100 characters"):
            sequences.append(7, text, last=False)
    begin(sequences, sequence, Listener())
    streamed = sequences._prompts.streamed.return_value  # type: ignore[attr-defined]
    streamed.read.assert_called_once_with("Hello " + "w" * 95, False)


def test_joins_pieces_that_arrive_before_the_voice() -> None:
    sequences = make_sequences()
    sequence = sequences.open(7, "Hel", last=False)
    sequences.append(7, "lo ", last=False)
    sequences.append(7, "you.", last=True)
    begin(sequences, sequence, Listener())
    streamed = sequences._prompts.streamed.return_value  # type: ignore[attr-defined]
    streamed.read.assert_called_once_with("Hello you.", True)


def test_builds_the_prompt_of_a_clone_once_its_text_fills_the_reference(
    checkpoint_of: CheckpointOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In context, a part begins when its text fills the rows of the reference; no prompt is built under the lock."""
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    prompts = PromptBuilder(checkpoint, EngineConfig(checkpoint=str(checkpoint.folder), max_text_tokens=512))
    voice = Voice(np.zeros(8, np.float32), np.zeros((60, 16), np.int32), "It says.")
    needed = 1 + 60 - len(prompts._tokenizer.reference("It says."))
    built: list[int] = []
    build = PromptBuilder.build

    def counted(self: PromptBuilder, request: SpeechOptions, spoken: Any = None) -> Any:
        built.append(len(spoken))
        return build(self, request, spoken)

    monkeypatch.setattr(PromptBuilder, "build", counted)
    text = prompts.streamed(REQUEST.model_copy(update={"voice": "any"}).in_voice(voice), Listener(), "key")
    started = []
    for number in range(100):
        changes = text.read(f"{number} ", last=False)
        builds = len(built)
        text.apply(changes, last=False)
        assert len(built) == builds
        started.append(len(text.stream.prompt) > 0)
    [_, ids] = built
    assert needed <= ids < needed + 8
    assert started.index(True) < 99
    prompt = text.stream.prompt
    assert prompt.is_open
    assert prompt.num_spoken == ids + len(prompt.arrived)
