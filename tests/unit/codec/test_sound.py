"""What is sent of an utterance, and where its silence begins and ends."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_client.records.audible import AudibleOnset
from qwen3_tts_engine.audio import SAMPLE_RATE, SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.sound import CUT, KEPT, MAX_WITHHELD, fade_out, find_onset, to_send, trailing_silence
from qwen3_tts_engine.core.batches import Audio, Chunks
from qwen3_tts_engine.core.streams import FinishReason, Stream
from qwen3_tts_engine.core.words import Pause
from tests.fakes.scripted import NUM_CODEBOOKS, Listener, make_stream

BLOCK = SAMPLE_RATE // 100
QUIET, LOUD = 20, 4000


def noise(samples: int, amplitude: float, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).uniform(-1, 1, samples) * amplitude).astype(np.int16)


def speech(*parts: tuple[int, float]) -> np.ndarray:
    """Noise of (samples, amplitude) each."""
    return np.concatenate([noise(samples, amplitude, seed) for seed, (samples, amplitude) in enumerate(parts)])


def withheld_stream() -> Stream:
    stream = make_stream("0", Listener())
    stream.is_withheld = True
    return stream


def hear(stream: Stream, pcm: np.ndarray, padding: int = 0) -> Audio:
    """The audio of a chunk of one stream, after which the codec has decoded `padding` more frames."""
    return audio(
        chunk(stream, len(pcm) // SAMPLES_PER_FRAME, padding),
        np.concatenate([pcm, noise(padding * SAMPLES_PER_FRAME, LOUD)])[None],
    )


def chunk(stream: Stream, count: int, padding: int = 0, is_last: bool = False) -> Chunks:
    codes = np.zeros((1, count + padding, NUM_CODEBOOKS), np.int32)
    one = np.zeros(1)
    return Chunks([stream], one, codes, one, np.array([count]), one, one == 0, np.array([is_last]))


def audio(chunks: Chunks, pcm: np.ndarray) -> Audio:
    return Audio(to_send(chunks, pcm), trailing_silence(chunks, pcm))


def send(stream: Stream, pcm: np.ndarray) -> list[np.ndarray]:
    """Decodes a waveform frame by frame."""
    return [hear(stream, frame).pcm[0] for frame in pcm.reshape(-1, SAMPLES_PER_FRAME)]


@given(st.lists(st.sampled_from([0, QUIET, 180, 185, 300, LOUD]), min_size=8, max_size=64), st.integers(0, 99))
def test_onset_is_that_of_the_clients_audible_ttfa(amplitudes: list[int], seed: int) -> None:
    blocks = [noise(BLOCK, amplitude, seed + i) for i, amplitude in enumerate(amplitudes)]
    pcm = np.concatenate(blocks)[: len(blocks) // 8 * SAMPLES_PER_FRAME]
    onset = AudibleOnset(SAMPLE_RATE)
    onset.feed(pcm)
    assert find_onset(pcm) == onset.sample


@pytest.mark.parametrize("silence", [0, 100, 3 * BLOCK, 1920, 2000, 3600, 5760, 9000, 11_000])
def test_what_is_sent_is_the_waveform_from_20_ms_before_the_first_sound(silence: int) -> None:
    pcm = speech((silence, QUIET), (5 * SAMPLES_PER_FRAME, LOUD))
    pcm = pcm[: len(pcm) // SAMPLES_PER_FRAME * SAMPLES_PER_FRAME]
    onset = find_onset(pcm)
    assert onset is not None
    stream = withheld_stream()
    sent = np.concatenate(send(stream, pcm))
    assert max(onset - KEPT - CUT, 0) <= stream.withheld_samples <= max(onset - KEPT, 0)
    assert (sent == pcm[stream.withheld_samples :]).all()


def test_the_first_sample_is_quiet_so_that_it_does_not_click() -> None:
    hum = (180 * np.sin(np.arange(3 * SAMPLES_PER_FRAME) * 2 * np.pi * 100 / SAMPLE_RATE)).astype(np.int16)
    stream = withheld_stream()
    sent = send(stream, np.concatenate([hum, noise(SAMPLES_PER_FRAME, LOUD)]))
    assert stream.withheld_samples > 0
    assert abs(int(sent[3][0])) < 10


def test_silent_frames_are_sent_with_the_first_sound_only() -> None:
    pcm = speech((2 * SAMPLES_PER_FRAME, QUIET), (2 * SAMPLES_PER_FRAME, LOUD))
    silent, still_silent, first, second = map(len, send(withheld_stream(), pcm))
    assert (silent, still_silent, second) == (0, 0, SAMPLES_PER_FRAME)
    # The first audible window overlaps the last silent block.
    assert KEPT + BLOCK <= first - SAMPLES_PER_FRAME <= KEPT + BLOCK + CUT


def test_at_most_half_a_second_is_withheld() -> None:
    pcm = noise(9 * SAMPLES_PER_FRAME, QUIET)
    stream = withheld_stream()
    sent = send(stream, pcm)
    assert [len(chunk) > 0 for chunk in sent] == [False] * 6 + [True] * 3
    assert MAX_WITHHELD - CUT <= stream.withheld_samples <= MAX_WITHHELD
    assert (np.concatenate(sent) == pcm[stream.withheld_samples :]).all()


def test_a_stream_that_is_not_withheld_is_sent_whole() -> None:
    pcm = noise(3 * SAMPLES_PER_FRAME, QUIET)
    assert (np.concatenate(send(make_stream("0", Listener()), pcm)) == pcm).all()


def test_a_failed_call_has_no_audio() -> None:
    failed = audio(chunk(withheld_stream(), 1), np.empty((1, 0), np.int16))
    assert (failed.num_samples.tolist(), failed.silent_frames.tolist()) == ([0], [0])


@pytest.mark.parametrize(
    ("frames", "expected"), [("S", 0), ("q", 1), ("qS", 0), ("Sq", 1), ("SqSqqq", 3), ("qqqq", 4), ("qqSqqS", 0)]
)
@pytest.mark.parametrize("padding", [0, 2])
def test_silent_frames_at_the_end_are_counted(frames: str, expected: int, padding: int) -> None:
    pcm = speech(*((SAMPLES_PER_FRAME, LOUD if frame == "S" else QUIET) for frame in frames))
    assert hear(make_stream("0", Listener()), pcm, padding).silent_frames.tolist() == [expected]


def test_a_frame_with_one_audible_block_is_not_silent() -> None:
    pcm = speech((SAMPLES_PER_FRAME - BLOCK, QUIET), (BLOCK, LOUD))
    assert hear(make_stream("0", Listener()), pcm).silent_frames.tolist() == [0]


@pytest.mark.parametrize("samples", [0, 1, 50, 120, 1920])
def test_fades_the_last_5_ms_to_zero(samples: int) -> None:
    pcm = np.full(samples, 10_000, np.int16)
    faded = fade_out(pcm)
    assert (pcm == 10_000).all()
    assert (faded[:-120] == 10_000).all()
    assert (np.diff(faded[-120:]) <= 0).all()
    assert not len(faded) or faded[-1] == 0


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("reason", FinishReason)
def test_only_the_end_of_a_loop_fades_out(reason: FinishReason, is_last: bool) -> None:
    stream = make_stream("0", Listener())
    stream.reason = reason
    pcm = noise(2 * SAMPLES_PER_FRAME, LOUD)
    [sent] = to_send(chunk(stream, 2, is_last=is_last), pcm[None])
    expected = fade_out(pcm) if is_last and reason is FinishReason.REPETITION else pcm
    assert (sent == expected).all()


def test_pauses_are_silence_before_frames() -> None:
    stream = make_stream("0", Listener())
    pcm = noise(3 * SAMPLES_PER_FRAME, LOUD)
    stream.prompt.pause = 5
    stream.begin_part(0)
    stream.prompt.pause = 7
    stream.begin_part(2)
    chunks = replace(chunk(stream, 3), pauses={0: stream.pauses_in(0, 3)})
    [sent] = to_send(chunks, pcm[None])
    first, second = np.split(pcm, [2 * SAMPLES_PER_FRAME])
    assert np.array_equal(sent, np.concatenate([np.zeros(5), first, np.zeros(7), second]))
    assert stream.pauses_in(1, 3) == [Pause(1, 7)]


def test_the_pause_before_the_first_part_is_not_trimmed() -> None:
    stream = withheld_stream()
    stream.prompt.pause = 5000
    stream.begin_part(0)
    pcm = speech((SAMPLES_PER_FRAME, 0), (SAMPLES_PER_FRAME, LOUD))
    sent = np.concatenate(send(stream, pcm))
    assert not sent[:5000].any()
    assert np.array_equal(sent[5000:], pcm[stream.withheld_samples :])
    assert stream.withheld_samples > 0
