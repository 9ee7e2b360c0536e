"""The voice service: encodes each voice once, caches within a limit and answers every caller."""

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.request import InvalidRequest, RequestError, SynthesisRequest, Unavailable
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import sqlite_store
from qwen3_tts_engine.voices.cache import VoiceCache
from qwen3_tts_engine.voices.record import Origin, VoiceRecord
from qwen3_tts_engine.voices.reference_audio import ReferenceAudio, frames, log_mel
from qwen3_tts_engine.voices.service import Voices
from qwen3_tts_engine.voices.sqlite_store import SqliteStore

ORIGIN = Origin(8, "speaker", "codec")
WAIT = 10.0


class ScriptedEncoder:
    """The x-vector holds the number of samples and the call's number."""

    def __init__(self) -> None:
        self.calls = 0
        self.primed: list[Voice] = []
        self.fail: Exception | None = None
        self.fail_to_prime: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def encode(self, samples: np.ndarray, in_context: bool) -> Voice:
        self.entered.set()
        self.gate.wait(WAIT)
        self.calls += 1
        if self.fail:
            raise self.fail
        vector = np.array([len(samples), self.calls, 0, 0, 0, 0, 0, 0], np.float32)
        codes = np.zeros((len(frames(samples)), 16), np.int32)
        return Voice(vector, codes) if in_context else Voice(vector)

    def prime(self, voice: Voice) -> None:
        if self.fail_to_prime:
            raise self.fail_to_prime
        self.primed.append(voice)


class Callback:
    """A `then` that records its answer; there must be exactly one."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.called = threading.Event()

    def __call__(self, answer: Any) -> None:
        self.answers.append(answer)
        self.called.set()

    @property
    def answer(self) -> Any:
        assert self.called.wait(WAIT)
        assert len(self.answers) == 1
        return self.answers[0]


@pytest.fixture
def encoder() -> ScriptedEncoder:
    return ScriptedEncoder()


@pytest.fixture
def voices(encoder: ScriptedEncoder, tmp_path: Path) -> Iterator[Voices]:
    voices = open_voices(encoder, tmp_path)
    yield voices
    encoder.gate.set()
    voices.close()


def open_voices(
    encoder: ScriptedEncoder, folder: Path, origin: Origin = ORIGIN, max_cached: int = 8, **settings: Any
) -> Voices:
    config = EngineConfig(checkpoint="any", **settings)

    def check_text(text: str) -> None:
        if text == "bad":
            raise InvalidRequest("ref_text", text, "must not be bad")

    return Voices(encoder, SqliteStore(folder, 10, 1 << 20), origin, config, check_text, max_cached)


def request(seconds: float = 1.0, text: str | None = "said", **fields: Any) -> SynthesisRequest:
    audio = np.random.default_rng(round(seconds * 1000)).normal(0, 0.1, round(seconds * 24000)).astype(np.float32)
    return SynthesisRequest.of({"text": "x", "ref_audio": audio, "ref_sample_rate": 24000, "ref_text": text} | fields)


def find(voices: Voices, requested: SynthesisRequest) -> Any:
    then = Callback()
    voices.find(requested, then)
    return then.answer


def register(voices: Voices, name: str, **fields: Any) -> Any:
    then = Callback()
    voices.register(request(voice=name, **fields), then)
    return then.answer


def named(name: str, **fields: Any) -> SynthesisRequest:
    return SynthesisRequest.of({"text": "x", "voice": name} | fields)


def test_a_reference_is_encoded_once(voices: Voices, encoder: ScriptedEncoder) -> None:
    first = find(voices, request())
    assert (first.text, first.num_frames, first.x_vector[0]) == ("said", 13, 24000)
    assert find(voices, request()) is first
    assert encoder.calls == 1


def test_other_samples_text_rate_or_mode_give_another_voice(voices: Voices, encoder: ScriptedEncoder) -> None:
    """With a key of the text alone, two speakers of one sentence would share a voice."""
    requested = [
        request(1.0), request(1.001), request(text="other"), request(ref_sample_rate=16000),
        request(x_vector_only=True),
    ]  # fmt: skip
    found = [find(voices, each) for each in requested]
    assert encoder.calls == len(requested)
    assert len({id(voice) for voice in found}) == len(requested)
    assert (found[-1].text, found[-1].codes) == (None, None)
    assert find(voices, request(x_vector_only=True, text=None)) is found[-1], "the text is not part of its key"


def test_concurrent_requests_share_one_call(voices: Voices, encoder: ScriptedEncoder) -> None:
    encoder.gate.clear()
    thens = [Callback() for _ in range(20)]
    for then in thens:
        voices.find(request(), then)
    encoder.gate.set()
    assert len({id(then.answer) for then in thens}) == 1
    assert encoder.calls == 1


def test_failures_are_reported_and_not_cached(voices: Voices, encoder: ScriptedEncoder) -> None:
    encoder.fail = RequestError("the encoder failed")
    assert str(find(voices, request())) == "the encoder failed"
    encoder.fail = ValueError("unexpected")
    assert isinstance(find(voices, request()), RequestError)
    encoder.fail = None
    assert isinstance(find(voices, request()), Voice)


def test_the_codec_is_ready_for_a_voice_before_a_caller_gets_it(voices: Voices, encoder: ScriptedEncoder) -> None:
    ready: list[bool] = []
    then = Callback()

    def check(answer: Any) -> None:
        ready.append(answer in encoder.primed)
        then(answer)

    voices.find(request(), check)
    assert then.answer.text == "said"
    assert ready == [True]
    assert encoder.primed == [then.answer], "with its text, as the one object that streams refer to"


def test_a_voice_that_the_codec_cannot_decode_is_refused_and_not_cached(
    voices: Voices, encoder: ScriptedEncoder
) -> None:
    encoder.fail_to_prime = RequestError("the codec failed")
    assert str(find(voices, request())) == "the codec failed"
    assert str(register(voices, "anna")) == "the codec failed"
    encoder.fail_to_prime = None
    assert isinstance(find(voices, request()), Voice)
    assert isinstance(find(voices, named("anna")), InvalidRequest), "it was not registered"


def test_as_many_voices_are_kept_as_the_codec_is_ready_to_speak_in(encoder: ScriptedEncoder, tmp_path: Path) -> None:
    voices = open_voices(encoder, tmp_path, max_cached=2)
    first = find(voices, request(1.0))
    last = [find(voices, request(seconds)) for seconds in (2.0, 3.0)]
    assert [find(voices, request(seconds)) for seconds in (2.0, 3.0)] == last
    assert encoder.calls == 3
    assert find(voices, request(1.0)) is not first
    assert encoder.calls == 4
    assert len(encoder.primed) == 4
    voices.close()


def test_a_known_voice_does_not_wait_for_the_encoder(voices: Voices, encoder: ScriptedEncoder) -> None:
    known = find(voices, request())
    record = register(voices, "anna")[0]
    assert isinstance(record, VoiceRecord)
    encoder.gate.clear()
    encoder.entered.clear()
    slow = Callback()
    voices.find(request(2.0), slow)
    assert encoder.entered.wait(WAIT)
    assert find(voices, request()) is known
    assert find(voices, named("anna")) is known
    assert not slow.called.is_set()


def test_a_failing_callback_does_not_affect_other_callers(voices: Voices, encoder: ScriptedEncoder) -> None:
    def fail(answer: Any) -> None:
        raise OSError("gone")

    encoder.gate.clear()
    then = Callback()
    voices.find(request(), fail)
    voices.find(request(), then)
    encoder.gate.set()
    assert isinstance(then.answer, Voice)
    encoder.gate.clear()
    waiting = Callback()
    voices.find(request(2.0), fail)
    voices.find(request(2.0), waiting)
    threading.Timer(0.1, encoder.gate.set).start()
    voices.close()
    assert waiting.answer is not None


def test_a_locked_registry_delays_only_requests_for_registered_voices(
    voices: Voices, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither the calling thread nor requests with a recording wait."""
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS", WAIT)
    register(voices, "anna")
    slow = Callback()
    with sqlite3.connect(tmp_path / sqlite_store.DATABASE, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        voices.find(named("anna"), slow)
        assert isinstance(find(voices, request(2.0)), Voice)
        assert not slow.called.is_set()
        other.execute("ROLLBACK")
    assert isinstance(slow.answer, Voice)


def test_refuses_when_full_and_answers_all_requests_on_close(encoder: ScriptedEncoder, tmp_path: Path) -> None:
    voices = open_voices(encoder, tmp_path, max_voice_requests=2)
    encoder.gate.clear()
    thens = [Callback() for _ in range(6)]
    refused = 0
    for index, then in enumerate(thens):
        try:
            voices.find(request(1 + index), then)
        except Unavailable:
            refused += 1
            then(None)
    threading.Timer(0.2, encoder.gate.set).start()
    voices.close()
    answers = [then.answer for then in thens]
    assert any(isinstance(answer, Unavailable) for answer in answers), "some requests were waiting at the close"
    assert refused or sum("busy" in str(answer) for answer in answers)
    with pytest.raises(Unavailable, match="shutting down"):
        voices.find(request(), Callback())
    voices.close()


def test_a_registered_voice_is_cached_at_once_and_loaded_after_a_restart(
    encoder: ScriptedEncoder, tmp_path: Path
) -> None:
    voices = open_voices(encoder, tmp_path)
    [record] = register(voices, "anna")
    assert record.reference_seconds == pytest.approx(1.0)
    assert find(voices, named("anna")).x_vector[0] == 24000
    assert (encoder.calls, len(encoder.primed)) == (1, 1)
    voices.close()
    voices = open_voices(encoder, tmp_path)
    cold = find(voices, named("anna"))
    assert find(voices, named("anna")) is cold
    assert (encoder.calls, encoder.primed[1:]) == (1, [cold])
    alone = find(voices, named("anna", x_vector_only=True))
    assert alone.codes is None
    np.testing.assert_array_equal(alone.x_vector, cold.x_vector)
    voices.close()


def test_a_name_registered_again_gives_the_new_voice(voices: Voices) -> None:
    register(voices, "anna")
    assert find(voices, named("anna")).x_vector[0] == 24000
    then = Callback()
    voices.delete("anna", then)
    assert [record.name for record in then.answer] == ["anna"]
    register(voices, "anna", seconds=2.0)
    assert find(voices, named("anna")).x_vector[0] == 48000


def test_concurrent_registrations_of_a_name_succeed_once(voices: Voices, encoder: ScriptedEncoder) -> None:
    """Both find the name free and encode; the table's constraint decides."""
    encoder.gate.clear()
    thens = [Callback(), Callback()]
    for seconds, then in zip((1.0, 2.0), thens, strict=True):
        voices.register(request(seconds, voice="anna"), then)
    encoder.gate.set()
    answers = [then.answer for then in thens]
    assert sum(isinstance(answer, InvalidRequest) for answer in answers) == 1
    listed = Callback()
    voices.list(listed)
    assert len(listed.answer) == 1


def test_refuses_a_voice_of_another_model_by_name(encoder: ScriptedEncoder, tmp_path: Path) -> None:
    """Two models share a folder."""
    voices = open_voices(encoder, tmp_path)
    register(voices, "anna")
    other = open_voices(encoder, tmp_path, origin=replace(ORIGIN, hidden_size=16))
    refused = find(other, named("anna"))
    assert isinstance(refused, InvalidRequest)
    assert "voice: 'anna': made for a talker of hidden size 8, this model's has 16" in str(refused)
    assert isinstance(register(other, "anna"), InvalidRequest), "names are shared between the models"
    assert [record.name for record in register(other, "bert")] == ["bert"]
    assert "hidden size 16, this model's has 8" in str(find(voices, named("bert")))
    voices.close()
    other.close()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": None}, "ref_text"),
        ({"text": "bad"}, "ref_text"),
        ({"ref_sample_rate": None}, "ref_sample_rate"),
        ({"ref_audio": np.zeros(24000, np.float32)}, "ref_audio"),
        ({"seconds": 0.05}, "ref_audio"),
        ({"seconds": 31.0}, "ref_audio"),
        ({"seconds": 10.0, "text": "Hi."}, "ref_text"),
        ({"seconds": 3.0, "text": "said " * 40}, "ref_text"),
    ],
)
def test_refuses_an_invalid_reference(
    voices: Voices, encoder: ScriptedEncoder, fields: dict[str, Any], field: str
) -> None:
    for answer in (find(voices, request(**fields)), register(voices, "anna", **fields)):
        assert isinstance(answer, InvalidRequest)
        assert answer.field == field
    assert encoder.calls == 0


def test_a_reference_that_is_too_long_says_what_to_do(voices: Voices) -> None:
    expected = "ref_audio: '31.000 s at 24000 Hz': too long: cut it to 30 s; 3 to 10 s work best"
    assert str(find(voices, request(seconds=31.0))) == expected


@pytest.mark.parametrize(
    ("seconds", "text", "problem"),
    [(20.0, "Hello.", "short"), (2.0, "This is the text of another recording. " * 4, "long")],
)
def test_a_transcript_of_another_recording_is_refused(voices: Voices, seconds: float, text: str, problem: str) -> None:
    given = f"ref_text: '{len(text.strip())} characters for {seconds:.1f} s of ref_audio'"
    expected = f"{given}: too {problem}: give exactly what is said in it, or set x_vector_only"
    assert str(find(voices, request(seconds, text))) == expected
    assert isinstance(find(voices, request(seconds, text, x_vector_only=True)), Voice)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.0, "Hi."), (3.0, "嗯"), (30.0, "今天天气很好，我们去公园吧。"), (0.5, "Good morning!"), (3.0, "said " * 20)],
)
def test_a_plausible_transcript_is_accepted(voices: Voices, seconds: float, text: str) -> None:
    assert isinstance(find(voices, request(seconds, text)), Voice)


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 6))
def test_the_cache_is_bounded_and_evicts_the_least_recently_used(puts: list[int], max_voices: int) -> None:
    cache, voices = VoiceCache(max_voices), dict[int, Voice]()
    recent: list[int] = []
    for key in puts:
        voices[key] = Voice(np.zeros(1, np.float32))
        cache.put(key, voices[key])
        recent = [k for k in recent if k != key] + [key]
        recent = recent[-max_voices:]
        assert list(cache._voices) == recent, "in order of use"
        assert len(cache) == len(recent)
        assert all(cache._voices[k] is voices[k] for k in recent)


def test_reading_a_voice_counts_as_use() -> None:
    cache = VoiceCache(max_voices=2)
    one = Voice(np.zeros(1, np.float32))
    cache.put("a", one)
    cache.put("b", one)
    assert cache.get("a") is one
    cache.put("c", one)
    assert (cache.get("a"), cache.get("b")) == (one, None)


@given(st.integers(1, 20_000), st.sampled_from([8000, 11025, 16000, 22050, 24000, 44100, 48000, 192000]))
def test_any_accepted_recording_gives_frames_and_a_finite_mel_spectrogram(count: int, rate: int) -> None:
    samples = np.random.default_rng(count).uniform(-1, 1, count).astype(np.float32)
    try:
        audio = ReferenceAudio.of(samples, rate, 30)
    except InvalidRequest:
        assert count / rate < 0.08
        return
    resampled = audio.resampled()
    assert len(resampled) == -(-count * 24000 // rate)
    assert np.isfinite(resampled).all()
    assert frames(resampled).shape == (-(-len(resampled) // 1920), 1920)
    mel = log_mel(resampled)
    assert mel.shape == ((len(resampled) + 768 - 1024) // 256 + 1, 128)
    assert len(mel) >= 5
    assert np.isfinite(mel).all()
