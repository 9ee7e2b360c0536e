"""Words from the text tokens of frames, alone and as listeners get them from the engine with all its threads."""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.alignment import TextLayout
from qwen3_tts_engine.core.batches import MILLION, Frames, Newcomer
from qwen3_tts_engine.core.streams import FinishReason, Prompt, Stream
from qwen3_tts_engine.core.words import CONFIDENCE_FRAMES, LEAD_SAMPLES, Pause, WordTimes, Written
from tests.fakes.scripted import Listener, ScriptedRunner, make_stream
from tests.unit.engine.test_engine import WAIT, Harness
from tests.unit.engine.test_silence import VoicedCodec

TOKEN = re.compile(r"\s*[\w']+|[^\w\s]|\s+")


def spans(text: str) -> list[tuple[int, int]]:
    """A token for each word with the space before it, and for each mark."""
    return [match.span() for match in TOKEN.finditer(text)]


def words_of(*texts: str, start: int = 0) -> WordTimes:
    """The parts of one text."""
    times = WordTimes()
    for text in texts:
        times.add(start, text, spans(text), ends=True)
        start += len(text) + 1
    return times


def events(
    times: WordTimes, tokens: Sequence[int], confidence: float | None = 0.9, part: int = 0
) -> list[dict[str, Any]]:
    """What an utterance of frames that speak `tokens` tells."""
    for frame, token in enumerate(tokens):
        times.observe(frame, 0, token, confidence)
    return told(times.finish(len(tokens)))


def told(events: Collection[Any], skipped: int = 0) -> list[dict[str, Any]]:
    return [json.loads(event.to_json(skipped)) for event in events]


def begun(events: Collection[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(event["word"], event["start"] // SAMPLES_PER_FRAME) for event in events if "word" in event]


def ended(events: Collection[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(event["index"], event["end"] // SAMPLES_PER_FRAME) for event in events if "end" in event]


def test_a_word_begins_and_ends_with_its_letters() -> None:
    """Tokens: she, smiled, comma, then, left, period; the comma is a pause."""
    found = events(words_of("She smiled, then left."), [0, 0, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6])
    assert begun(found) == [("She", 0), ("smiled,", 2), ("then", 7), ("left.", 8)]
    assert ended(found) == [(0, 2), (1, 4), (2, 8), (3, 10)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('  "Well," he   said - \u201cno!\u201d', ['"Well,"', "he", "said", "\u201cno!\u201d"]),
        ("don't well-known 50%, & so", ["don't", "well-known", "50%,", "&", "so"]),
        ("你好，今天 OK吗？", ["你好，", "今天", "OK吗？"]),
        ("안녕하세요 여러분.", ["안녕하세요", "여러분."]),
        ("... —", []),
    ],
)
def test_words_are_written_as_the_caller_wrote_them(text: str, words: list[str]) -> None:
    found = [event for event in events(words_of(text), range(40)) if "word" in event]
    assert [event["word"] for event in found] == words
    assert [text[event["first"] : event["last"] + 1] for event in found] == words
    assert [event["index"] for event in found] == list(range(len(words)))


def test_a_token_is_a_word_in_scripts_without_spaces() -> None:
    text, times = "今天很好，OK吗", WordTimes()
    times.add(0, text, [(0, 2), (2, 3), (3, 4), (4, 5), (5, 7), (7, 8)], ends=True)
    found = events(times, [0, 0, 1, 2, 3, 4, 5])
    assert begun(found) == [("今天", 0), ("很", 2), ("好，", 3), ("OK", 5), ("吗", 6)]


def test_tokens_of_one_character_and_of_its_bytes() -> None:
    times = WordTimes()
    times.add(0, "é!", [(0, 1), (0, 1), (1, 2)], ends=True)
    found = events(times, [0, 0, 1, 1, 2])
    assert begun(found) == [("é!", 0)]


@pytest.mark.parametrize("cuts", [(4,), (9,), (10,), (4, 9, 10, 15)])
def test_pieces_of_a_text_have_its_words(cuts: tuple[int, ...]) -> None:
    """Cut between tokens: `The well-known man.`; white space may be left out."""
    text, times, start = "The  well-known man.", WordTimes(), 0
    for end in (*cuts, len(text)):
        piece = text[start:end]
        stripped = piece.lstrip() if start == 4 else piece
        times.add(end - len(stripped), stripped, spans(stripped), ends=end == len(text))
        start = end
    found = [event for event in events(times, range(12)) if "word" in event]
    assert [(event["word"], event["first"], event["last"]) for event in found] == [
        ("The", 0, 2), ("well-known", 5, 14), ("man.", 16, 19)
    ]  # fmt: skip


def test_a_word_is_told_as_far_as_its_text_has_arrived() -> None:
    times = WordTimes()
    times.add(0, "well", spans("well"), ends=False)
    times.observe(0, 0, 0, None)
    [first] = told(times.take(1))
    times.add(4, "-known", spans("-known"), ends=True)
    [second] = told(times.finish(3))
    assert (first["word"], first["last"]) == ("well", 3)
    assert second == {"index": 0, "end": 3 * SAMPLES_PER_FRAME}


def test_events_are_taken_with_the_frames_of_their_chunk() -> None:
    times = words_of("One two three")
    for frame, token in enumerate([0, 0, 1, 1, 2]):
        times.observe(frame, 0, token, 0.9)
    assert begun(told(times.take(1))) == [("One", 0)]
    assert times.take(2) == []
    assert begun(told(times.take(3))) == [("two", 2)]
    assert begun(told(times.take(9))) == [("three", 4)]
    assert ended(told(times.finish(7))) == [(2, 7)]


def test_no_time_is_told_while_attention_is_elsewhere() -> None:
    found = events(words_of("One two three"), [0, 1, 1, 2], confidence=0.5)
    assert [event["start"] for event in found if "word" in event] == [None, None, None]
    assert [event["end"] for event in found if "end" in event] == [None, None, None]


def test_confidence_is_that_of_the_last_frames() -> None:
    times = words_of("One two")
    for frame in range(CONFIDENCE_FRAMES):
        times.observe(frame, 0, 0, 0.3)
    assert times.spoken_share is None
    [first] = told(times.take(1))
    assert first["start"] is None
    for frame in range(CONFIDENCE_FRAMES, 2 * CONFIDENCE_FRAMES):
        times.observe(frame, 0, 0, 0.9)
    assert times.spoken_share == 0.5
    times.observe(2 * CONFIDENCE_FRAMES, 0, 1, 0.9)
    assert begun(told(times.take(99))) == [("two", 2 * CONFIDENCE_FRAMES)]


def test_what_a_part_leaves_unsaid_is_not_told() -> None:
    times = words_of("One two three.", "Four five.")
    for frame, (part, token) in enumerate([(0, 0), (0, 1), (0, 1), (1, 0), (1, 1), (1, 3)]):
        times.observe(frame, part, token, 0.9)
    found = told(times.finish(6))
    assert begun(found) == [("One", 0), ("two", 1), ("Four", 3), ("five.", 4)]
    assert ended(found) == [(0, 1), (1, 3), (3, 4), (4, 5)]
    # Three and its period, of seven tokens.
    assert times.spoken_share == pytest.approx(5 / 7)


def test_a_word_ends_with_its_part() -> None:
    """The next part begins with a mark, which is no word."""
    times = words_of("One two.", '"Four."')
    for frame, (part, token) in enumerate([(0, 0), (0, 1), (1, 0), (1, 0), (1, 1)]):
        times.observe(frame, part, token, 0.9)
    found = told(times.finish(5))
    assert begun(found) == [("One", 0), ("two.", 1), ('"Four."', 4)]
    assert ended(found) == [(0, 1), (1, 2), (2, 5)]


def test_a_text_of_which_a_part_was_never_begun_is_not_whole() -> None:
    times = words_of("One two.", "Three.")
    events(times, [0, 1, 2, 3])
    assert times.spoken_share == pytest.approx(3 / 5)


def test_frames_that_were_dropped_tell_nothing() -> None:
    """Silence has ended a part after its first two frames; the next part replaces the rest."""
    times = words_of("One two three", "Four")
    for frame, token in enumerate([0, 0, 1, 2]):
        times.observe(frame, 0, token, 0.9)
    assert begun(told(times.take(2))) == [("One", 0)]
    times.observe(2, 1, 0, 0.9)
    found = told(times.finish(4))
    assert begun(found) == [("Four", 2)]
    assert ended(found) == [(0, 2), (3, 4)]


def test_a_part_continues_at_its_last_token() -> None:
    times = words_of("One two three", "Four")
    times.observe(0, 0, 2, 0.9)
    assert (times.token_of(0), times.token_of(1)) == (2, 0)


class SpeakingRunner(ScriptedRunner):
    """Each frame speaks the next token of its part, from where the slot was opened; it observes no first frame."""

    confidence = 0.9

    def __init__(self, num_slots: int, lookahead: int) -> None:
        super().__init__(num_slots, lookahead=lookahead, page_size=4)
        self.token = np.zeros(num_slots, np.int64)
        self.fresh = np.zeros(num_slots, bool)
        self.opened: list[int] = []

    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        for newcomer in newcomers:
            self.token[newcomer.slot], self.fresh[newcomer.slot] = newcomer.token, True
            self.opened.append(newcomer.token)
        return super().prefill(newcomers)

    def launch(self, slots: np.ndarray) -> Frames:
        frames = super().launch(slots)
        self.token[slots] += ~self.fresh[slots]
        confidence = np.where(self.fresh[slots], -1, round(self.confidence * MILLION))
        self.fresh[slots] = False
        return Frames(frames.codes, frames.ended, np.stack([self.token[slots], confidence], axis=1))


class WordListener(Listener):
    """Records before which sample of the utterance each word was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told_with: list[range] = []
        """The samples of the chunk with which each event came."""
        self.samples = 0

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        super().send(pcm, words)
        self.told_with += [range(self.samples, self.samples + len(pcm))] * len(words)
        self.samples += len(pcm)


TEXT = "one two three four five six seven eight nine ten"


@pytest.mark.parametrize("layout", ["full", "streaming"])
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("pages", [1000, 36])
def test_each_word_comes_once_and_with_its_chunk(lookahead: int, pages: int, layout: TextLayout) -> None:
    """Beside streams without word times; with few pages streams are parked and resumed. The first two frames are
    silent, and not sent."""
    codec = VoicedCodec(lambda frame: frame >= 2)
    harness = Harness(slots=6, lookahead=lookahead, pages=pages, codec=codec)
    runner = SpeakingRunner(6, lookahead)
    harness.engine = type(harness.engine)(harness.engine.scheduler, harness.engine.state.chunker, runner, codec)
    streams, listeners = [], []
    for seed in range(6):
        listener = WordListener()
        stream = make_stream(str(seed), listener, seed, max_frames=40)
        stream.is_withheld = True
        if seed % 2 == 0:
            stream.words, stream.tells_words = words_of(TEXT), True
            stream.prompt.layout = layout
        streams.append(stream)
        listeners.append(listener)
    harness.engine.start()
    for stream in streams:
        harness.engine.submit(stream)
    for stream, listener in zip(streams, listeners, strict=True):
        assert listener.ended.wait(WAIT)
        assert listener.error is None
        assert listener.summary is not None
        if stream.words is None:
            assert not listener.words
            assert (listener.summary.words, listener.summary.spoken_share) == ((), None)
            continue
        check_words(listener, LEAD_SAMPLES[layout])
    harness.engine.close()
    assert harness.is_empty()
    assert (max(runner.opened) > 0) == (pages < 1000), "streams were parked after their first words"


def check_words(listener: WordListener, lead: int) -> None:
    assert listener.summary is not None
    skipped = listener.summary.withheld_samples
    assert skipped > 0
    found = [*map(json.loads, listener.words), *map(json.loads, listener.summary.words)]
    assert [event["word"] for event in found if "word" in event] == TEXT.split()
    starts = {event["index"]: event["start"] for event in found if "word" in event}
    ends = {event["index"]: event["end"] for event in found if "end" in event}
    assert list(starts) == list(ends) == list(range(10))
    # A stream that was parked observes nothing with its first frame then: its words are a frame late each time.
    assert [*starts.values()] == sorted(starts.values())
    assert all(ends[index] == starts[index + 1] for index in range(9))
    for event, chunk in zip(map(json.loads, listener.words), listener.told_with, strict=True):
        for sample in [event[name] for name in ("start", "end") if name in event]:
            assert sample in chunk, "told with the chunk in which it begins"
            assert (sample + skipped + lead) % SAMPLES_PER_FRAME == 0 or sample == chunk.start
    assert listener.summary.spoken_share == 1.0


def test_an_utterance_that_is_cut_says_how_much_of_its_text_was_spoken() -> None:
    harness = Harness(slots=2)
    runner = SpeakingRunner(2, 0)
    harness.engine = type(harness.engine)(harness.engine.scheduler, harness.engine.state.chunker, runner, harness.codec)
    listener = WordListener()
    stream: Stream = make_stream("0", listener, 0, max_frames=4)
    stream.words, stream.tells_words = words_of(TEXT), True
    harness.engine.start()
    harness.engine.submit(stream)
    assert listener.ended.wait(WAIT)
    harness.engine.close()
    assert listener.summary is not None
    assert listener.summary.reason is FinishReason.LENGTH
    assert listener.summary.spoken_share == pytest.approx(0.4)
    assert json.loads(listener.summary.words[-1]) == {"index": 3, "end": 4 * SAMPLES_PER_FRAME}


def test_times_count_the_pauses_before_them() -> None:
    """A word that ends at a pause ends before it."""
    times = words_of("One two.", "Three.")
    for frame, (part, token) in enumerate([(0, 0), (0, 1), (0, 1), (1, 0)]):
        times.observe(frame, part, token, 0.9)
    pauses = [Pause(0, 10), Pause(3, 1000)]
    found = [json.loads(event.to_json(100, pauses)) for event in times.finish(4)]
    assert [event["start"] for event in found if "start" in event] == [10, 1830, 3 * SAMPLES_PER_FRAME + 910]
    assert [event["end"] for event in found if "end" in event] == [1830, 3 * SAMPLES_PER_FRAME - 90, 8590]


@pytest.mark.parametrize("sent", [0, 1000, 1920])
def test_no_time_is_led_into_audio_that_was_sent_before(sent: int) -> None:
    times = words_of("One two")
    for frame, token in enumerate([0, 1]):
        times.observe(frame, 0, token, 0.9)
    [_, ends, begins] = [json.loads(event.to_json(0, (), 500, sent)) for event in times.take(2)]
    assert ends["end"] == begins["start"] == max(sent, SAMPLES_PER_FRAME - 500)


def test_no_time_is_led_into_a_pause() -> None:
    times = words_of("One.", "Two.")
    for frame, part in enumerate([0, 0, 1]):
        times.observe(frame, part, 0, 0.9)
    pauses = [Pause(2, 1000)]
    [_, ends, begins] = [json.loads(event.to_json(0, pauses, 500)) for event in times.take(3)]
    assert (ends["end"], begins["start"]) == (2 * SAMPLES_PER_FRAME - 500, 2 * SAMPLES_PER_FRAME + 1000)


def test_words_are_what_was_written() -> None:
    """Two words are spoken for one that was written, which may be a part of a word."""
    times, text = WordTimes(), "about five dollars (ok)."
    written = [Written(i, i + 1, char) for i, char in enumerate("about ")]
    written += [Written(6, 8, "$5")] * len("five dollars")
    written += [Written(8 + i, 9 + i, char) for i, char in enumerate(" (ok).")]
    times.add(0, text, spans(text), ends=True, written=written)
    found = events(times, [0, 1, 2, 3, 4, 5])
    told = [(event["word"], event["first"], event["last"]) for event in found if "word" in event]
    assert told == [("about", 0, 4), ("$5", 6, 7), ("(ok).", 9, 13)]


def test_the_rest_of_a_part_begins_with_the_word_that_was_not_finished() -> None:
    """One word was begun and not finished; its end comes with the next part."""
    times = WordTimes()
    text, tokens = "one twoo three four five", [(0, 3), (3, 6), (6, 8), (8, 14), (14, 19), (19, 24)]
    times.add(0, text, tokens, ends=True)
    for frame, token in enumerate([0, 1]):
        times.observe(frame, 0, token, 0.9)
    assert times.cut(0) == 1
    for frame, token in enumerate([0, 1, 2, 3, 4], 2):
        times.observe(frame, 1, token, 0.9)
    found = told(times.finish(7))
    assert begun(found) == [("one", 0), ("twoo", 1), ("three", 4), ("four", 5), ("five", 6)]
    assert ended(found) == [(0, 1), (1, 4), (2, 5), (3, 6), (4, 7)]
    assert times.spoken_share == 1.0


def test_a_word_that_the_rest_of_a_part_does_not_finish_ends_with_it() -> None:
    """The part after the rest begins with a mark, so no other word ends it."""
    times = WordTimes()
    times.add(0, "one twoo", [(0, 3), (3, 6), (6, 8)], ends=True)
    times.add(9, "– three", [(0, 1), (1, 7)], ends=True)
    for frame, token in enumerate([0, 1]):
        times.observe(frame, 0, token, 0.9)
    assert times.cut(0) == 1
    for frame, (part, token) in enumerate([(1, 0), (2, 0), (2, 0), (2, 1)], 2):
        times.observe(frame, part, token, 0.9)
    found = told(times.finish(6))
    assert begun(found) == [("one", 0), ("twoo", 1), ("three", 5)]
    assert ended(found) == [(0, 1), (1, 3), (2, 6)]


@pytest.mark.parametrize(
    ("tokens", "confidences", "rest"),
    [
        ([0, 1, 2, 3, 4], [0.9] * 5, None),
        ([0, 1, 2], [0.9] * 3, 3),
        ([0, 1, 2, 3, 4], [0.1] * 5, None),
        ([0, 1, 2], [0.1] * 3, None),
        ([0, 1, 2, 3], [0.9, 0.7, 0.1, 0.1], 2),
        ([0], [0.9], 1),
    ],
    ids=["spoken", "half", "passed in doubt", "never followed", "lost", "first word"],
)
def test_what_is_left_is_known_up_to_where_the_text_was_followed(
    tokens: list[int], confidences: list[float], rest: int | None
) -> None:
    times = words_of("one two three four five")
    for frame, (token, confidence) in enumerate(zip(tokens, confidences, strict=True)):
        times.observe(frame, 0, token, confidence)
    assert times.cut(0) == rest


class HastyRunner(SpeakingRunner):
    """Ends each part after three frames."""

    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        self.left = 3
        return super().prefill(newcomers)

    def launch(self, slots: np.ndarray) -> Frames:
        frames, self.left = super().launch(slots), self.left - 1
        return replace(frames, ended=frames.ended | (self.left < 0))


def test_a_talker_that_ends_early_speaks_all_of_the_text() -> None:
    def part(ids: list[int]) -> Prompt:
        parts.append(ids)
        return replace(stream.prompt, text_ids=np.array(ids), code_ids=np.zeros((len(ids), 16)), num_spoken=len(ids))

    harness, parts = Harness(slots=1), list[list[int]]()
    runner = HastyRunner(1, 0)
    harness.engine = type(harness.engine)(harness.engine.scheduler, harness.engine.state.chunker, runner, harness.codec)
    listener = WordListener()
    stream = make_stream("0", listener, max_frames=40)
    stream.words, stream.tells_words, stream.rest_of = words_of(TEXT), True, part
    stream.prompt = part([*range(10)])
    stream.last_pause = 2400
    harness.engine.start()
    harness.engine.submit(stream)
    assert listener.ended.wait(WAIT)
    harness.engine.close()
    assert parts == [[*range(first, 10)] for first in (0, 3, 6, 9)]
    assert listener.summary is not None
    assert (listener.summary.reason, listener.summary.spoken_share) == (FinishReason.STOP, 1.0)
    assert stream.continued == 3
    found = [*map(json.loads, listener.words), *map(json.loads, listener.summary.words)]
    assert [event["word"] for event in found if "word" in event] == TEXT.split()
    assert listener.samples == 12 * SAMPLES_PER_FRAME + 2400
    assert not listener.pcm[-1].any(), "it comes after the text, still"
    assert not stream.pauses
