"""Word times over HTTP, before a stub server that tells them."""

import base64
import io
import json
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from qwen3_tts_gateway.words import WordTimeline
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import text_of
from tests.fakes.word_server import SPOKEN_SAMPLES, WORD_SAMPLES, WordServer
from tests.unit.gateway.conftest import wait_for
from tests.unit.gateway.test_speech import PATH, error_of, post

TEXT = "  “Well,” said Anna,  it is café time. "
GRANULARITIES: dict[str, Any] = {"timestamp_granularities": ["word"]}
SSE = GRANULARITIES | {"stream_format": "sse"}
WORD_S, SPOKEN_S = WORD_SAMPLES / 24_000, SPOKEN_SAMPLES / 24_000


@pytest.fixture
def client(words: WordServer) -> Iterator[httpx.Client]:
    with RunningGateway(words.url) as gateway, httpx.Client(base_url=gateway.url) as client:
        yield client


def speak(client: httpx.Client, text: str = TEXT, **fields: object) -> httpx.Response:
    return client.post(PATH, json={"input": text, "response_format": "pcm", **fields})


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]


def latest(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is last told of each word."""
    told = [word for event in events for word in event.get("words", [])]
    return list({word["index"]: word for word in told}.values())


def expected(text: str, speed: float = 1.0) -> list[dict[str, Any]]:
    found, first = [], 0
    for index, word in enumerate(text.split()):
        first = text.index(word, first)
        times = {"start": index * WORD_S / speed, "end": (index * WORD_S + SPOKEN_S) / speed}
        found.append({"index": index, "word": word, "first": first, "last": first + len(word) - 1, **times})
        first += len(word)
    return found


def check(words: list[dict[str, Any]], text: str, speed: float = 1.0) -> None:
    assert [text[word["first"] : word["last"] + 1] for word in words] == text.split()
    for word, other in zip(words, expected(text, speed), strict=True):
        assert word == pytest.approx(other, abs=1e-3)


def test_events_tell_a_word_before_its_audio_and_again_when_it_has_ended(client: httpx.Client) -> None:
    events = events_of(speak(client, "One two.", **SSE))
    assert [event["type"].removeprefix("speech.audio.") for event in events] == [
        *("words", "delta", "words", "delta", "words", "done")
    ]
    assert events[0]["words"] == [{"index": 0, "word": "One", "first": 0, "last": 2, "start": 0.0}]
    assert [word["index"] for word in events[2]["words"]] == [0, 1]
    check(latest(events), "One two.")
    assert events[-1]["spoken_share"] == 1.0


def test_nothing_is_told_that_is_not_asked_for(client: httpx.Client, words: WordServer) -> None:
    assert not latest(events_of(speak(client, stream_format="sse")))
    assert "word_times" not in [tensor.name for tensor in words.servicer.received[-1].inputs]


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.6])
def test_times_are_those_of_the_audio_at_its_speed(client: httpx.Client, speed: float) -> None:
    text = "One two three four five six seven eight nine ten."
    events = events_of(speak(client, text, speed=speed, **SSE))
    words = latest(events)
    check(words, text, speed)
    audio = b"".join(base64.b64decode(event["audio"]) for event in events if "audio" in event)
    assert words[-1]["end"] == pytest.approx(len(audio) / 48_000 - (WORD_S - SPOKEN_S) / speed, abs=0.05)


def test_a_sample_rate_changes_no_time(client: httpx.Client) -> None:
    check(latest(events_of(speak(client, sample_rate=8000, **SSE))), TEXT)


def test_parts_continue_offsets_and_times(client: httpx.Client, words: WordServer) -> None:
    words.servicer.max_characters = 40
    text = "Well then." + " " * 100 + "It is late, and we should go home now. " * 3 + "Good night!"
    events = events_of(speak(client, text, **SSE))
    spoken = [text_of(request) for request in words.servicer.received if len(text_of(request)) <= 40]
    assert sum(map(len, spoken)) < len(text), "a part of white space is left out"
    check(latest(events), text)
    assert events[-1]["spoken_share"] == pytest.approx(1.0)


def test_text_beyond_the_frames_is_not_spoken(client: httpx.Client, words: WordServer) -> None:
    words.servicer.max_characters = 10
    events = events_of(speak(client, "One. Two. Three. Four. Five.", max_new_tokens=8, **SSE))
    found = latest(events)
    assert 2 <= len(found) < 5
    share = sum(len(word["word"]) for word in found) / len("One.Two.Three.Four.Five.")
    assert events[-1]["spoken_share"] == pytest.approx(share)


def test_an_unknown_time_is_null(client: httpx.Client, words: WordServer) -> None:
    words.servicer.unknown = {"said"}
    found = {word["word"]: (word["start"], word["end"]) for word in latest(events_of(speak(client, **SSE)))}
    assert found["said"] == (None, None)
    assert None not in found["Anna,"]


def test_verbose_json_has_audio_and_words(client: httpx.Client) -> None:
    answer = speak(client, response_format="verbose_json", speed=2.0).json()
    check(answer["words"], TEXT, speed=2.0)
    with wave.open(io.BytesIO(base64.b64decode(answer["audio"]))) as file:
        assert (file.getframerate(), answer["sample_rate"], answer["format"]) == (24_000, 24_000, "wav")
        assert file.getnframes() / 24_000 == pytest.approx(answer["duration"], abs=1e-3)
    assert answer["duration"] == pytest.approx(len(TEXT.split()) * WORD_S / 2, abs=0.05)
    assert (answer["finish_reason"], answer["usage"]["output_tokens"]) == ("stop", 2 * len(TEXT.split()))


def test_vllm_omnis_field_is_answered_in_a_header(client: httpx.Client) -> None:
    response = speak(client, "One two.", word_timestamps=True)
    assert len(np.frombuffer(response.content, "<i2")) == 2 * WORD_SAMPLES
    assert json.loads(response.headers["x-word-timestamps"]) == [
        {"word": "One", "start_ms": 0, "end_ms": 140},
        {"word": "two.", "start_ms": 160, "end_ms": 300},
    ]
    long = speak(client, "é " * 200, word_timestamps=True)
    assert ("x-word-timestamps" in long.headers, "x-word-timestamps-omitted" in long.headers) == (False, True)


def test_items_of_a_batch_have_words(client: httpx.Client) -> None:
    items = [{"input": TEXT}, {"input": "One two."}]
    answer = client.post(f"{PATH}/batch", json={"items": items, **GRANULARITIES}).json()
    for item, result in zip(items, answer["results"], strict=True):
        check(result["words"], item["input"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (SSE, "timestamp_granularities"),
        ({"word_timestamps": True}, "word_timestamps"),
        ({"response_format": "verbose_json"}, "response_format"),
    ],
)
def test_a_checkpoint_without_heads_is_a_wrong_field(
    client: httpx.Client, words: WordServer, fields: dict[str, Any], param: str
) -> None:
    words.servicer.has_heads = False
    response = speak(client, **fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert str(error_of(response)["message"]).startswith(f"{param}: requires attention heads")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (GRANULARITIES, "timestamp_granularities"),
        ({"timestamp_granularities": ["segment"]}, "timestamp_granularities"),
        ({"timestamp_granularities": "word"}, "timestamp_granularities"),
        ({"word_timestamps": True, "stream_format": "audio"}, "word_timestamps"),
        ({"response_format": "verbose_json", "stream_format": "sse"}, "response_format"),
        ({"response_format": "verbose_json", "stream": True}, "response_format"),
        ({"response_format": "verbose_json", "sample_rate": 7}, "sample_rate"),
    ],
)
def test_words_that_the_response_cannot_carry_are_refused(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    response = speak(client, **fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param), response.text


def test_a_disconnect_cancels_a_response_that_waits_for_its_end(words: WordServer) -> None:
    words.servicer.hangs_after = 1
    with RunningGateway(words.url) as gateway:
        with post(gateway, {"input": TEXT, "response_format": "verbose_json"}):
            wait_for(lambda: words.servicer.hanging == 1)
        wait_for(lambda: words.servicer.cancelled > 0)


def timeline(*starts: float | None) -> WordTimeline:
    words = WordTimeline(None)
    for index, start in enumerate(starts):
        samples = None if start is None else round(start * 24_000)
        words.add([{"index": index, "word": "abc", "first": 4 * index, "last": 4 * index + 2, "start": samples}])
    return words


@pytest.mark.parametrize(
    ("starts", "played_s", "characters"),
    [
        ((), 1.0, 0),
        ((0.0, 0.5, 1.0), 0.0, 0),
        ((0.0, 0.5, 1.0), 0.01, 3),
        ((0.0, 0.5, 1.0), 0.5, 3),
        ((0.0, 0.5, 1.0), 0.75, 7),
        ((0.0, 0.5, 1.0), 9.0, 11),
        ((0.0, None, 1.0), 0.75, None),
        ((0.0, None, 1.0), 1.5, 11),
        ((0.0, 0.5, None), 0.3, 3),
        ((0.0, 0.5, None), 0.6, None),
        ((None,), 0.1, None),
        ((None,), 0.0, 0),
    ],
)
def test_the_text_that_was_heard(starts: tuple[float | None, ...], played_s: float, characters: int | None) -> None:
    assert timeline(*starts).heard_characters(played_s) == characters
