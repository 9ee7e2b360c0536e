"""The last steps of a start: the codec's rows and proof, the warm-up and the gate that holds requests until then."""

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.codec.proof import CodecProofError
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.streams import Sink, Stream
from qwen3_tts_engine.lifecycle import opening, warm_up
from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.lifecycle.opening import Opening
from qwen3_tts_engine.lifecycle.warm_up import speak, utterance
from qwen3_tts_engine.request import (
    InvalidRequest,
    Outcome,
    RequestError,
    ServerStarting,
    Unavailable,
)
from scripts.synthetic.configs import ModelType
from tests.conftest import CheckpointOf
from tests.fakes.scripted import Listener, make_stream, scripted_pcm
from tests.unit.engine.test_engine import WAIT, Harness, eventually


def make_warm_up(sink: Sink, key: str) -> Stream:
    return make_stream(key, sink)


CODES = np.random.default_rng(0).integers(0, 2048, (3, 63, 16), np.int32)
GOLDEN = Golden(CODES, scripted_pcm(CODES), 30.0, "digest")


class Opened:
    """An engine behind a gate that opens after proof and warm-up."""

    def __init__(self, **settings: object) -> None:
        self.config = EngineConfig.model_validate({"checkpoint": "any", "max_streams": 4, **settings})
        self.harness = Harness()
        self.gate = Gate(8)
        self.opening = Opening(self.harness.engine, self.gate, self.config)
        self.deaths: list[BaseException] = []
        self.died = threading.Event()
        self.harness.engine.on_death = self._die

    def begin(self, golden: Golden | None = GOLDEN) -> None:
        self.opening.begin(cast(Code2Wav, self.harness.codec), golden, make_warm_up)

    def _die(self, error: BaseException) -> None:
        self.deaths.append(error)
        self.died.set()

    def request(self) -> Listener:
        """Sends a request to the gate."""
        listener = Listener()

        def submit() -> None:
            try:
                self.harness.speak(listener=listener)
            except RequestError as error:
                listener.finish(error)

        self.gate.enter(submit)
        return listener


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    monkeypatch.setattr(opening, "LAUNCH_SECONDS", 0.0)
    opened = Opened(codec_wait_seconds=0.05)
    yield opened
    opened.harness.codec.gate.set()
    opened.opening.close()
    opened.harness.engine.close()


def test_makes_no_codec_call_while_triton_launches_the_model(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LAUNCH_SECONDS", 0.5)
    started = time.monotonic()
    opened.begin()
    eventually(lambda: bool(opened.harness.codec.claims))
    assert time.monotonic() - started >= 0.5


def test_close_does_not_wait_for_the_launch(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LAUNCH_SECONDS", 10 * WAIT)
    opened.begin()
    opened.opening.close()
    assert opened.gate.is_open
    assert not opened.harness.codec.claims
    assert not opened.harness.codec.calls


def test_a_request_waits_for_the_proof(opened: Opened) -> None:
    opened.harness.codec.gate.clear()
    opened.begin()
    listener = opened.request()
    assert not opened.gate.is_open
    assert not listener.ended.is_set()
    opened.harness.codec.gate.set()
    assert listener.ended.wait(WAIT)
    assert listener.error is None
    assert opened.gate.is_open
    assert opened.harness.codec.claims == 1
    assert not opened.deaths


def test_a_codec_that_fails_the_proof_ends_the_engine_and_every_request(opened: Opened) -> None:
    opened.begin(golden=replace(GOLDEN, pcm=GOLDEN.pcm * 2))
    for listener in (opened.request(), opened.request()):
        assert listener.ended.wait(WAIT)
        assert isinstance(listener.error, Unavailable)
        assert "code2wav differs from its golden cases" in str(listener.error)
    assert not opened.harness.engine.is_alive
    assert opened.died.wait(WAIT)
    [death] = opened.deaths
    assert isinstance(death, CodecProofError)


@pytest.mark.parametrize("golden", [GOLDEN, None], ids=["proof", "no-proof"])
def test_the_claim_waits_until_triton_has_started(opened: Opened, golden: Golden | None) -> None:
    opened.harness.codec.fail = ServerStarting("Server not ready")
    opened.begin(golden)
    listener = opened.request()
    assert not listener.ended.wait(10 * opened.config.codec_wait_seconds)
    opened.harness.codec.fail = None
    assert listener.ended.wait(WAIT)
    assert listener.error is None
    assert opened.harness.codec.claims == 1


@pytest.mark.parametrize("golden", [GOLDEN, None], ids=["proof", "no-proof"])
def test_a_claim_that_is_refused_ends_the_engine_and_every_request(opened: Opened, golden: Golden | None) -> None:
    opened.harness.codec.fail = RequestError("code2wav has 3 of 8 rows left")
    opened.begin(golden)
    listener = opened.request()
    assert listener.ended.wait(WAIT)
    assert isinstance(listener.error, Unavailable)
    assert "code2wav has 3 of 8 rows left" in str(listener.error)
    assert not opened.harness.engine.is_alive
    assert opened.died.wait(WAIT)
    assert [str(death) for death in opened.deaths] == ["code2wav has 3 of 8 rows left"]


@pytest.mark.parametrize("error", [RuntimeError("not within initialize"), Unavailable("not loaded")])
def test_proves_a_codec_that_becomes_available_late(opened: Opened, error: Exception) -> None:
    opened.config = EngineConfig(checkpoint="any", max_streams=4)
    opened.opening = Opening(opened.harness.engine, opened.gate, opened.config)
    opened.harness.codec.fail = error
    opened.begin()
    listener = opened.request()
    assert not listener.ended.wait(0.3)
    opened.harness.codec.fail = None
    assert listener.ended.wait(WAIT)
    assert listener.error is None


def test_names_a_codec_that_is_not_loaded(opened: Opened) -> None:
    opened.harness.codec.fail = Unavailable("code2wav: no available versions")
    opened.begin()
    listener = opened.request()
    assert listener.ended.wait(WAIT)
    assert str(listener.error).startswith("code2wav is unavailable after 0.05 s (codec_wait_seconds): load it")
    assert str(listener.error).endswith("code2wav: no available versions")


def test_close_does_not_wait_for_the_codec(opened: Opened) -> None:
    opened.harness.codec.fail = ServerStarting("Server not ready")
    opened.begin()
    opened.opening.close()
    assert opened.gate.is_open
    assert not opened.deaths, "a shutdown is not a failure of the engine"


def test_without_golden_cases_the_engine_starts_after_the_claim_without_proof_and_warm_up(opened: Opened) -> None:
    opened.begin(golden=None)
    assert opened.request().ended.wait(WAIT)
    assert opened.harness.codec.claims == 1
    assert {frames for _, frames in opened.harness.codec.calls} <= {1, 2, 4, 8}
    assert opened.harness.runner.launched == 8, "the frames of the request"


def test_the_gate_keeps_the_order_and_is_bounded() -> None:
    gate, done = Gate(3), []
    for number in range(3):
        gate.enter(lambda number=number: done.append(number))  # type: ignore[misc]
    with pytest.raises(Unavailable, match="the server is starting"):
        gate.enter(lambda: done.append(3))
    assert done == []
    gate.open()
    gate.enter(lambda: done.append(4))
    gate.open()
    assert done == [0, 1, 2, 4]


def test_warm_up_is_excluded_from_metrics(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "ROUND_SECONDS", math.inf)
    opened.harness.engine.start()
    opened.gate.open()
    speak(opened.harness.engine, make_warm_up, opened.config)
    assert opened.harness.runner.launched > 8
    readings = opened.harness.engine.recorder.take()
    assert not readings.counted
    assert readings.observed.keys() <= {"qwen3_tts_send_seconds"}
    assert opened.request().ended.wait(WAIT)
    assert opened.harness.engine.recorder.take().counted["qwen3_tts_requests_total", Outcome.OK.value] == 1


def test_refuses_requests_if_the_warm_up_fails(opened: Opened) -> None:
    opened.harness.runner.fail = RuntimeError("injected")
    opened.begin()
    listener = opened.request()
    assert listener.ended.wait(WAIT)
    assert "the engine died: injected" in str(listener.error)


def test_warm_up_request_matches_the_checkpoint_type(checkpoint_of: CheckpointOf) -> None:
    config = EngineConfig(checkpoint="any", max_frames_limit=4)
    kinds: tuple[ModelType, ...] = ("custom_voice", "voice_design", "base")
    models = {kind: Checkpoint.open(str(checkpoint_of(kind))).config for kind in kinds}
    requests = {kind: utterance(model, config) for kind, model in models.items()}
    custom, design = requests["custom_voice"], requests["voice_design"]
    assert custom is not None
    assert design is not None
    assert (custom.speaker in models["custom_voice"].talker_config.spk_id, custom.instruct) == (True, None)
    assert (design.speaker, bool(design.instruct), design.max_frames) == (None, True, 4)
    assert requests["base"] is None


def test_skips_the_warm_up_if_its_request_is_invalid(opened: Opened) -> None:
    def refuse(*_: object) -> Stream:
        raise InvalidRequest("text", "Hello.", "too long")

    speak(opened.harness.engine, refuse, opened.config)


def test_skips_warm_up_streams_that_the_engine_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine with overload=refuse may admit only one stream at a time."""
    harness, submitted = Harness(), 0
    submit = harness.engine.submit

    def refuse_every_other(*arguments: Any) -> None:
        nonlocal submitted
        submitted += 1
        if submitted % 2 == 0:
            raise Unavailable("busy")
        submit(*arguments)

    monkeypatch.setattr(harness.engine, "submit", refuse_every_other)
    monkeypatch.setattr(warm_up, "ROUND_SECONDS", math.inf)
    harness.engine.start()
    speak(harness.engine, make_warm_up, EngineConfig(checkpoint="any"))
    assert submitted > 2
    harness.engine.close()
