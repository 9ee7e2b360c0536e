"""When the demo voice's words begin and end, and what is spoken of a text, through a real tritonserver."""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.pieces import Sequence
from qwen3_tts_client.protocol import MODEL_NAME, End, SpeechRequest, encode, merged
from qwen3_tts_client.stream import Responses, Timeouts
from qwen3_tts_client.sync_stream import speak
from qwen3_tts_engine.audio import SAMPLE_RATE
from qwen3_tts_engine.core.words import LEAD_SAMPLES
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.benchmarks.word_times import align
from tests.e2e.serving import Caller, serve_speech
from tests.e2e.test_http import generate_stream

TEXT = '  "Your parcel" was delivered this morning, and left with your neighbour at number twelve. '
WORDS = TEXT.split()
LONG = "Thanks for calling. " + "Your order left the warehouse this morning, and it should be with you by Friday. " * 4
FRAME = 1920


@pytest.fixture(scope="module")
def demo(exported_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    folder = tmp_path_factory.mktemp("server")
    with serve_speech(exported_demo, CHECKPOINT, folder) as server, Caller(server) as caller:
        yield caller


@dataclass
class Told:
    """`before` is the number of samples received with each element of `events`."""

    samples: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int16))
    events: list[dict[str, Any]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    end: End = field(default_factory=End)

    @property
    def words(self) -> list[dict[str, Any]]:
        return merged([*self.events, *self.end.words])


def hear(caller: Caller, text: str, pieces: list[str] | None = None, **fields: Any) -> Told:
    defaults: dict[str, Any] = {"speaker": "vivian", "language": "english", "seed": 3, "word_times": True}
    request = SpeechRequest(text, **(defaults | fields))
    messages = iter([encode(request)]) if pieces is None else streamed(request, pieces)
    told, responses = Told(), Responses()
    for _, chunk in speak(caller.stub, messages, Timeouts(120, 60), responses):
        told.samples = np.concatenate([told.samples, chunk.pcm])
        told.events += chunk.words
        told.before += [len(told.samples)] * len(chunk.words)
    assert responses.end is not None
    told.end = responses.end
    return told


def streamed(request: SpeechRequest, pieces: list[str]) -> Iterator[Any]:
    sequence = Sequence(request, MODEL_NAME)
    for piece in pieces:
        yield sequence.add(piece)
        time.sleep(0.05)
    yield sequence.end()


def check(told: Told, text: str) -> None:
    """Every word of the text once, as the caller wrote it, in time."""
    words = told.words
    assert [word["word"] for word in words] == text.split()
    assert [text[word["first"] : word["last"] + 1] for word in words] == text.split()
    events = [*told.events, *told.end.words]
    assert sorted(event["index"] for event in events if "word" in event) == list(range(len(words)))
    assert sorted(event["index"] for event in events if "end" in event) == list(range(len(words)))
    starts, ends = [word["start"] for word in words], [word["end"] for word in words]
    assert starts == sorted(starts)
    assert ends[-1] <= len(told.samples)
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    for event, before in zip(told.events, told.before, strict=True):
        assert event.get("start", 0) < before
        assert event.get("end", 0) <= before


@pytest.mark.parametrize("cuts", [(), (11, 20, 30, 61)], ids=["whole", "streamed"])
def test_words_are_told_when_they_are_said(demo: Caller, cuts: tuple[int, ...]) -> None:
    """Pieces are cut within words, too."""
    pieces = [TEXT[start:end] for start, end in pairwise([0, *cuts, len(TEXT)])] if cuts else None
    told = hear(demo, "" if pieces else TEXT, pieces)
    check(told, TEXT)
    assert (told.end.finish_reason, told.end.spoken_share) == ("stop", 1.0)
    expected = align(TEXT, told.samples)
    assert expected is not None
    errors = [abs(word["start"] - start) for word, (start, _) in zip(told.words, expected, strict=True)][1:]
    assert np.median(errors) <= FRAME
    assert np.mean(np.array(errors) <= 2 * FRAME) >= 0.9


def test_times_are_of_the_audio_that_is_sent(demo: Caller) -> None:
    """Leading silence is left out of them where it is not sent."""
    trimmed, whole = (hear(demo, TEXT, trim_silence=trims) for trims in (True, False))
    assert trimmed.end.usage is not None
    skipped = trimmed.end.usage.withheld_samples
    assert skipped > 0
    assert len(whole.samples) == len(trimmed.samples) + skipped
    starts = [(one["start"], two["start"]) for one, two in zip(trimmed.words, whole.words, strict=True)]
    assert all(one == max(0, two - skipped) for one, two in starts)
    assert all(two % FRAME == 0 for _, two in starts)


def test_a_long_text_is_spoken_in_parts(demo: Caller) -> None:
    told = hear(demo, LONG)
    check(told, LONG)
    assert told.end.spoken_share == 1.0


def test_streams_beside_it_hear_the_same(demo: Caller) -> None:
    """Streams of both layouts and without word times in one batch; equal seeds give equal words."""
    alone = hear(demo, TEXT, trim_silence=False)
    with ThreadPoolExecutor(6) as pool:
        same = [pool.submit(hear, demo, TEXT, trim_silence=False) for _ in range(2)]
        other = [pool.submit(hear, demo, "", [TEXT]), pool.submit(hear, demo, TEXT, word_times=False)]
        found = [future.result() for future in (*same, *other)]
    assert [one.words for one in found[:2]] == [alone.words] * 2
    check(found[2], TEXT)
    assert (found[3].words, found[3].end.spoken_share) == ([], 1.0)


def test_an_utterance_that_is_cut_says_how_much_was_spoken(demo: Caller) -> None:
    told = hear(demo, TEXT, max_frames=20)
    assert told.end.finish_reason == "length"
    assert told.end.spoken_share is not None
    assert 0.2 < told.end.spoken_share < 0.6
    assert [word["word"] for word in told.words] == WORDS[: len(told.words)]
    assert told.words[-1]["end"] == len(told.samples)


def test_words_over_http(demo: Caller) -> None:
    fields = {"text": TEXT, "speaker": "vivian", "language": "english", "seed": 3, "word_times": True}
    *events, last = generate_stream(demo.server, fields)
    texts = [event.get("words", []) for event in (*events, last)]
    found = merged(json.loads(text) for each in texts for text in ([each] if isinstance(each, str) else each))
    assert found == hear(demo, TEXT).words
    assert last["spoken_share"] == 1.0


def test_say_writes_them(demo: Caller, tmp_path: Path) -> None:
    file = tmp_path / "words.jsonl"
    arguments = [
        "--speaker",
        "vivian",
        "--language",
        "english",
        "--seed",
        "3",
        "--output",
        str(tmp_path / "speech.wav"),
    ]
    url = f"localhost:{demo.server.ports.grpc}"
    assert main(["say", "--url", url, TEXT, "--word-times", str(file), *arguments]) == 0
    assert [json.loads(line) for line in file.read_text().splitlines()] == hear(demo, TEXT).words


def test_a_checkpoint_without_heads_refuses(caller: Caller) -> None:
    error = caller.speak("Hello.", word_times=True).error
    assert error is not None
    assert "INVALID_ARG: word_times: True: requires attention heads that follow the text" in error
    assert "in the layout full: this checkpoint has none" in error
    assert caller.speak("Hello.", word_times=False, max_frames=2).error is None


def assert_same(starts: list[int], expected: list[int], is_streamed: bool) -> None:
    """Up to the lead of streamed text, which ends where a chunk begins."""
    assert np.abs(np.subtract(starts, expected)).max() <= LEAD_SAMPLES["streaming" if is_streamed else "full"]


def is_equal(first: np.ndarray, second: np.ndarray) -> bool:
    """Up to the codec's rounding, which depends on the chunks."""
    return len(first) == len(second) and int(np.abs(first.astype(int) - second).max()) <= 2


@pytest.mark.parametrize("by_word", [False, True], ids=["whole", "streamed"])
def test_breaks_are_silence_to_the_sample(demo: Caller, by_word: bool) -> None:
    def say(seconds: float) -> Told:
        pause = f'<break time="{seconds:g}s"/>'
        text = f"{pause}Your parcel is here. {pause}{pause} Call us back soon. {pause}"
        return hear(demo, "" if by_word else text, re.findall(r"\S+\s*", text) if by_word else None)

    without, told = say(0), say(1)
    pause = np.zeros(SAMPLE_RATE, np.int16)
    assert without.end.usage is not None
    frames = range(-without.end.usage.withheld_samples, len(without.samples), FRAME)
    halves = [(without.samples[:at], without.samples[at:]) for at in frames if at > 0]
    expected = [np.concatenate([pause, first, pause, pause, second, pause]) for first, second in halves]
    assert any(is_equal(told.samples, samples) for samples in expected)
    shifted = [one["start"] + (1 if one["index"] < 4 else 3) * SAMPLE_RATE for one in without.words]
    assert_same([word["start"] for word in told.words], shifted, by_word)


@pytest.mark.parametrize("size", [100, 5], ids=["whole", "streamed"])
def test_words_are_those_that_the_caller_wrote(demo: Caller, size: int) -> None:
    text = "Ask **Nguyen** 😀 about `SQL` for $5.20 today."
    spoken = "Ask win about sequel for five point two dollars today."
    fields = {"text_policy": "plain", "normalize_text": True, "lexicon": '{"nguyen": "win", "SQL": "sequel"}'}
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    told, plain = hear(demo, "", pieces, **fields), hear(demo, "", [spoken])
    assert is_equal(told.samples, plain.samples)
    assert [word["word"] for word in told.words] == ["Ask", "Nguyen", "about", "SQL", "for", "$5.20", "today."]
    assert all(word["word"] == text[word["first"] : word["last"] + 1] for word in told.words)
    starts = [word["start"] for word in plain.words]
    assert_same([word["start"] for word in told.words], [*starts[:6], starts[9]], is_streamed=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": "... 😀"}, "text: '... 😀': nothing of it can be spoken"),
        ({"text": "<b></b>", "text_policy": "plain"}, "must contain more than white space"),
        ({"text": "See **this**.", "text_policy": "refuse"}, "'**': emphasis is refused: leave it out, or set"),
        ({"text_policy": "loud"}, "text_policy: 'loud': Input should be 'verbatim', 'plain' or 'refuse'"),
        ({"text": "Wait <break time='20s'/> here."}, "at most 10 s, and 60 s in a text"),
        ({"lexicon": "{"}, "lexicon: '{': a JSON object"),
        ({"normalize_text": True, "language": "german"}, "for chinese, english, japanese, not for german"),
    ],
)
def test_what_cannot_be_spoken_is_refused(caller: Caller, fields: dict[str, Any], message: str) -> None:
    request: dict[str, Any] = {"text": "Hello.", "max_frames": 2} | fields
    error = caller.speak(**request).error
    assert error is not None
    assert message in error
