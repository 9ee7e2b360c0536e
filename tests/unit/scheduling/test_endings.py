"""Streams that do not end by themselves are ended; ordinary speech is not."""

from collections import deque

import numpy as np
import pytest

from qwen3_tts_engine.core.batches import Audio, Frames
from qwen3_tts_engine.core.streams import FinishReason, Prompt, Status, Stream
from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.endings import MAX_PERIOD, repeats
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from scripts.lab.simulation import audible
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream

WINDOW = 50
MAX_SILENT = 25
MAX_FRAMES = 400


class Talk:
    """One stream whose frames are made and decoded one by one."""

    def __init__(
        self,
        stream: Stream,
        max_silent: int = MAX_SILENT,
        max_repeated: int = WINDOW,
        min_token_frames: float = 0.0,
    ) -> None:
        table = SlotTable(1, MAX_FRAMES, NUM_CODEBOOKS)
        endings = (max_silent, max_repeated, min_token_frames)
        limits = SchedulerLimits(32, 100, 1, 8, 1.0, False, *endings)
        self.scheduler = Scheduler(table, limits, Capacity(0, 1, batching_is_free=True))
        self.chunker = Chunker(table, 1, lambda streams: 0.0)
        self.stream = stream
        self.decoded = 0
        self.scheduler.submit(stream)

    def make(self, code: int, ended: bool = False) -> bool:
        """Makes a frame; returns whether the stream ended."""
        batch = self.scheduler.next_batch(0.0)
        codes = np.full((len(batch), NUM_CODEBOOKS), code)
        drained = self.scheduler.collect(batch, Frames(codes, np.full(len(batch), ended)), 0.0)
        return bool(drained)

    def decode(self, silent: bool) -> bool:
        """Decodes a frame; returns whether the stream ended."""
        chunks = self.chunker.next_chunks(0.0)
        assert chunks is not None
        speech = audible(chunks)
        audio = Audio(speech.pcm, chunks.counts) if silent else speech
        ended = self.scheduler.settle(self.chunker.done(chunks, audio, 0.0)) | self.scheduler.cut_silent(chunks)
        self.decoded += int(chunks.counts.sum())
        self.scheduler.check_integrity()
        return bool(ended)

    def speak(self, sounds: str) -> bool:
        """Makes and decodes a frame per letter: S audible, q silent. Returns whether the stream ended."""
        ends = False
        for index, sound in enumerate(sounds):
            ends |= self.make(index) or self.decode(sound == "q")
        return ends


def talker(**fields: object) -> Stream:
    stream = make_stream("0", Listener(), max_frames=MAX_FRAMES)
    for name, value in fields.items():
        setattr(stream, name, value)
    return stream


def part(spoken: int) -> Prompt:
    return Prompt(np.zeros(4, np.int32), np.zeros((4, NUM_CODEBOOKS), np.int32), [], spoken)


@pytest.mark.parametrize("period", range(1, MAX_PERIOD + 1))
def test_repeated_codes_are_a_loop_though_some_differ(period: int) -> None:
    random = np.random.default_rng(period)
    loop = np.resize(random.integers(0, 2048, period), WINDOW)
    assert repeats(loop[None]).all()
    loop[random.permutation(WINDOW)[:1]] = 2048
    assert repeats(loop[None]).all()


def test_speech_is_no_loop() -> None:
    """Codes that stay for up to a second and a half, as in a long vowel or a pause."""
    random = np.random.default_rng(0)
    rows = [np.repeat(random.integers(0, 256, WINDOW), random.integers(1, 20, WINDOW))[:WINDOW] for _ in range(500)]
    held = [max(np.diff(np.flatnonzero(np.diff(row, prepend=-1, append=-1)))) for row in rows]
    assert max(held) > 18
    assert not repeats(np.array(rows)).any()


def test_a_loop_ends_the_stream_after_its_pending_frames() -> None:
    talk = Talk(talker())
    for _ in range(WINDOW + 16):
        assert not talk.make(7)
        if talk.stream.status is Status.DRAINING:
            break
    made = int(talk.scheduler.table.written[0])
    assert WINDOW <= made <= WINDOW + 16
    while talk.stream.status is not Status.ENDED:
        talk.decode(silent=False)
    assert (talk.stream.reason, talk.stream.frames, talk.decoded) == (FinishReason.REPETITION, made, made)


def test_silence_after_speech_ends_the_stream_and_drops_later_frames() -> None:
    talk = Talk(talker())
    assert not talk.speak("S" + "q" * (MAX_SILENT - 1))
    talk.make(99)
    talk.make(100)
    assert talk.decode(silent=True)
    assert talk.stream.status is Status.ENDED
    assert (talk.stream.reason, talk.stream.frames) == (FinishReason.SILENCE, MAX_SILENT + 1)


@pytest.mark.parametrize(
    "sounds",
    [
        pytest.param("q" * 60, id="before-speech"),
        pytest.param("S" + ("q" * (MAX_SILENT - 1) + "S") * 3, id="pauses"),
    ],
)
def test_other_silence_does_not(sounds: str) -> None:
    assert not Talk(talker()).speak(sounds)


def test_silence_does_not_end_a_part_whose_text_is_open() -> None:
    stream = talker(is_open=True)
    stream.prompt.is_open = True
    stream.prompt.trailing = [1] * MAX_FRAMES
    assert not Talk(stream).speak("S" + "q" * 60)


def test_silence_ends_a_part_and_the_next_one_begins() -> None:
    talk = Talk(talker(following=deque([part(spoken=9)])))
    assert not talk.speak("S" + "q" * MAX_SILENT)
    assert (talk.stream.part, talk.stream.status) == (1, Status.PARKED)
    assert not talk.speak("q" * (MAX_SILENT - 1) + "S"), "silence of the part before counts"
    talk.make(0, ended=True)
    summary = talk.stream.summary
    assert talk.stream.status is Status.ENDED
    assert summary.reason is FinishReason.SILENCE
    assert summary.frames == 1 + 2 * MAX_SILENT
    assert (summary.text_tokens, summary.prompt_rows) == (4 + 9, 8)


def test_detectors_are_off_by_default() -> None:
    talk = Talk(talker(), max_silent=0, max_repeated=0)
    assert not any(talk.make(7) or talk.decode(silent=index > 0) for index in range(120))


@pytest.mark.parametrize(
    ("max_frames", "ended", "reason"), [(3, False, "length"), (9, True, "stop"), (3, True, "stop")]
)
def test_the_reason_is_the_end_of_speech_or_the_cap(max_frames: int, ended: bool, reason: str) -> None:
    talk = Talk(talker(max_frames=max_frames))
    talk.speak("SS")
    if not talk.make(2, ended):
        talk.decode(silent=False)
    assert talk.stream.status is Status.ENDED
    assert talk.stream.summary.reason.value == reason


def test_the_clock_of_a_listener_starts_with_the_first_sample() -> None:
    talk = Talk(talker())
    table = talk.scheduler.table
    talk.make(0)
    chunks = talk.chunker.next_chunks(0.0)
    assert chunks is not None
    talk.chunker.done(chunks, Audio([np.empty(0, np.int16)], np.ones(1, np.int32)), now=1.0)
    assert not table.started[0]
    assert table.deadline[0] < -1e8
    talk.make(1)
    chunks = talk.chunker.next_chunks(1.0)
    assert chunks is not None
    talk.chunker.done(chunks, Audio([np.empty(2400, np.int16)], np.zeros(1, np.int32)), now=2.0)
    assert table.started[0]
    assert table.deadline[0] == pytest.approx(2.1)


@pytest.mark.parametrize(
    ("tokens", "frames", "reason"),
    [
        (20, 40, FinishReason.STOP),
        (20, 39, FinishReason.INCOMPLETE),
        (20, 0, FinishReason.INCOMPLETE),
        (7, 3, FinishReason.STOP),
    ],
)
def test_an_end_that_comes_too_soon_for_the_text_is_no_stop(tokens: int, frames: int, reason: FinishReason) -> None:
    """The least is two frames for each text token; a text of few tokens may have less to speak."""
    talk = Talk(talker(prompt=part(spoken=tokens)), min_token_frames=2.0)
    talk.speak("S" * frames)
    talk.make(0, ended=True)
    assert talk.stream.summary.reason is reason


def test_a_part_that_ends_too_soon_counts_although_the_others_do_not() -> None:
    talk = Talk(talker(prompt=part(spoken=10), following=deque([part(spoken=10)])), min_token_frames=2.0)
    talk.speak("S" * 5)
    talk.make(0, ended=True)
    assert talk.stream.part == 1
    talk.speak("S" * 20)
    talk.make(0, ended=True)
    assert talk.stream.status is Status.ENDED
    assert talk.stream.summary.reason is FinishReason.INCOMPLETE
