"""The engine's process and Triton's, with a service of a few lines in place of the engine."""

import os
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine import metrics
from qwen3_tts_engine.core.streams import FinishReason, Summary
from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.process.child import Child
from qwen3_tts_engine.process.messages import Accept, Cancel
from qwen3_tts_engine.process.parent import EngineProcess
from qwen3_tts_engine.request import InvalidRequest, RequestError, SequencePosition, Unavailable
from tests.fakes.scripted import Listener
from tests.unit.engine.test_engine import eventually

WAIT = 60.0
ROOT = Path(__file__).parents[3]
ENTRY = ROOT / "tests" / "fakes" / "engine_process.py"
SUMMARY = Summary(FinishReason.LENGTH, 2, 3, 4, 5)


class Caller(Listener):
    arrived = 1.5

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.voices: list[str] | None = None

    def reply(self, voices: list[str]) -> None:
        self.voices = voices
        self.finish(None)

    def is_cancelled(self) -> bool:
        return False


class Started:
    def __init__(self, **fields: str) -> None:
        self.deaths: list[BaseException] = []
        self.died = threading.Event()
        self.host = EngineProcess(ENTRY, fields, self.call_model, self.die, max_requests=4)

    def die(self, error: BaseException) -> None:
        self.deaths.append(error)
        self.died.set()

    def call_model(self, call: ModelCall) -> list[np.ndarray]:
        if call.model == "missing":
            raise InvalidRequest("model", call.model, "one that exists")
        return [call.inputs["x"] + 1]

    def ask(self, do: str, position: SequencePosition | None = None, **fields: Any) -> Caller:
        caller = Caller(f"request {do}")
        self.host.accept({"do": do, **fields}, caller, position)
        return caller


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "model_repository" / "qwen3_tts" / "1"))
        yield


@pytest.fixture(scope="module")
def shared() -> Iterator[Started]:
    """For tests that leave the process as it was; each takes seconds to start."""
    started = Started()
    yield started
    started.host.close()


@pytest.fixture
def started() -> Iterator[Started]:
    started = Started()
    yield started
    started.host.close()


def ended(caller: Caller) -> Caller:
    assert caller.ended.wait(WAIT)
    return caller


def test_audio_and_the_end_reach_the_caller(shared: Started) -> None:
    caller = ended(shared.ask("speak", samples=np.arange(5, dtype=np.int16), words=["{}"]))
    assert caller.error is None
    assert caller.words == ["{}"]
    assert caller.summary == SUMMARY
    [pcm] = caller.pcm
    assert pcm.dtype == np.int16
    assert pcm.tolist() == [0, 1, 2, 3, 4]
    assert pcm.flags.writeable, "Triton's tensors refuse others"


def test_position_arrival_and_errors_pass_through(shared: Started) -> None:
    position = SequencePosition(7, start=True, last=False)
    assert str(ended(shared.ask("describe", position)).error) == f"INVALID {position} at 1.5"
    # Said by another thread of the process than the one that answers.
    eventually(lambda: shared.host.is_open)


def test_a_voice_operation_is_answered(shared: Started) -> None:
    assert ended(shared.ask("voices")).voices == ["a", "b"]


def test_other_models_are_called_in_this_process(shared: Started) -> None:
    [pcm] = ended(shared.ask("call", model="other")).pcm
    assert pcm.tolist() == [2, 3]
    error = ended(shared.ask("call", model="missing")).error
    assert isinstance(error, InvalidRequest)


def test_a_cancel_reaches_the_engine(shared: Started) -> None:
    caller = shared.ask("wait")
    shared.host.cancel("another request")
    shared.host.cancel(caller.key)
    assert str(ended(caller).error) == "cancelled, and its caller says True"


def test_readings_are_fetched(shared: Started) -> None:
    shared.host.readings()
    ended(shared.ask("speak", samples=np.zeros(3, np.int16)))
    readings = shared.host.readings()
    assert readings.counted[metrics.FRAMES.name, ""] == 3
    assert shared.host.readings().counted == {}


def test_closing_ends_what_runs(started: Started) -> None:
    waiting = started.ask("wait")
    started.host.close()
    assert str(ended(waiting).error) == "the service is closing"
    with pytest.raises(Unavailable):
        started.ask("speak", samples=np.zeros(3, np.int16))
    assert not started.deaths
    assert started.host.readings().counted == {}


def test_a_dead_engine_is_reported_and_answers_on(started: Started) -> None:
    ended(started.ask("die"))
    assert started.died.wait(WAIT)
    assert [str(error) for error in started.deaths] == ["injected"]
    assert not started.host.is_alive
    assert ended(started.ask("voices")).voices == ["a", "b"]


def test_a_killed_process_ends_every_request(started: Started) -> None:
    waiting = started.ask("wait")
    os.kill(started.host.pid, signal.SIGKILL)
    assert isinstance(ended(waiting).error, Unavailable)
    assert started.died.wait(WAIT)
    assert str(waiting.error) == "the engine's process ended with exit code -9"
    with pytest.raises(Unavailable, match="exit code -9"):
        started.ask("wait")


def test_a_process_that_cannot_load_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"^no such checkpoint$"):
        Started(error="no such checkpoint")
    with pytest.raises(RuntimeError, match="ended with exit code 3"):
        Started(exit="3")


def test_the_process_ends_with_its_parent(started: Started) -> None:
    """After the death of a stub, too, the kernel closes its ends of the pipes."""
    process = os.pidfd_open(started.host.pid)
    started.host._requests.close()
    assert _is_ready(process)
    os.close(process)


def _is_ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], WAIT)[0])


def test_an_error_of_a_sink_cancels_its_request(shared: Started) -> None:
    caller = Caller("request wait")
    caller.send_error = RuntimeError("the connection is gone")
    shared.host.accept({"do": "send and wait"}, caller, None)
    assert isinstance(ended(caller).error, RequestError)


def test_a_chunk_after_the_end_of_its_request_is_dropped(shared: Started, caplog: pytest.LogCaptureFixture) -> None:
    same_pipe = SequencePosition("call", start=False, last=False)
    caller = ended(shared.ask("end and send", same_pipe))
    following = ended(shared.ask("speak", same_pipe, samples=np.zeros(5, np.int16), words=[]))
    assert following.error is caller.error is None
    assert not caller.pcm
    assert not caplog.records


def test_refuses_requests_while_too_many_wait(started: Started) -> None:
    """An engine whose thread builds prompts too slowly has the same effect; nothing that waits is lost."""
    os.kill(started.host.pid, signal.SIGSTOP)
    callers = [Caller(f"request {number}") for number in range(20)]
    refused = [reason for caller in callers if (reason := refusal(started, caller))]
    os.kill(started.host.pid, signal.SIGCONT)
    assert set(refused) == {"busy: 4 requests wait"}
    assert 4 <= len(callers) - len(refused) < 20
    for caller in callers[: -len(refused)]:
        assert ended(caller).error is None


def refusal(started: Started, caller: Caller) -> str | None:
    """Why a request that alone fills a pipe is refused; None if it is not."""
    try:
        started.host.accept({"do": "speak", "samples": np.zeros(200_000, np.int16)}, caller, None)
    except Unavailable as error:
        return str(error)
    return None


def test_responses_of_a_sequence_take_one_pipe() -> None:
    sent: list[list[object]] = [[], []]
    position = SequencePosition("call", start=False, last=False)
    child = Child.__new__(Child)
    child._data = [SimpleNamespace(send=pipe.append) for pipe in sent]  # type: ignore[misc]
    child._callers = {}
    child.service = SimpleNamespace(accept=lambda fields, caller, position: caller.finish(None))  # type: ignore[assignment]
    child.run(Accept(str(i), 0.0, {}, position) for i in range(16))
    assert sorted(map(len, sent)) == [0, 16]
    child.run(Accept(str(i), 0.0, {}, None) for i in range(64))
    assert 16 not in map(len, sent)
    assert 0 not in map(len, sent), "requests of their own take both"


def test_texts_that_arrived_together_are_tokenized_ahead_except_pieces() -> None:
    texts: list[object] = []
    reader = Child.__new__(Child)
    reader.service = SimpleNamespace(tokenize=texts.extend)  # type: ignore[assignment]
    piece = SequencePosition("call", start=True, last=False)
    whole = [Accept(str(i), 0.0, fields, None) for i, fields in enumerate([{"text": "a"}, {}, {"text": "b"}])]
    reader.look_ahead([whole[0], Cancel("0"), *whole[1:], Accept("3", 0.0, {"text": "c"}, piece)])
    assert texts == ["a", None, "b"]
