import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from qwen3_tts_client.records.audible import AudibleOnset

RATE = 24_000
HOP = 240  # 10 ms
FLOOR = 10 ** (-45 / 20) * 32768  # of an int16, RMS


def onset(*chunks: NDArray[np.int16]) -> int | None:
    detector = AudibleOnset(RATE)
    for chunk in chunks:
        detector.feed(chunk)
    return detector.sample


def constant(level: float, samples: int) -> NDArray[np.int16]:
    return np.full(samples, level, np.int16)


def test_silence_is_never_audible() -> None:
    assert onset(constant(0, RATE)) is None
    assert onset() is None


def test_the_threshold_is_45_db_below_full_scale() -> None:
    assert onset(constant(np.floor(FLOOR), 960)) is None
    assert onset(constant(np.ceil(FLOOR), 960)) == 0


def test_onset_requires_two_consecutive_windows() -> None:
    click = np.concatenate([constant(0, 4 * HOP), constant(8000, 1), constant(0, 4 * HOP)])
    # One sample of 8000 in a window of 480 is 365 RMS: two windows share it.
    assert onset(click) == 3 * HOP
    # At the end of the audio, only one window contains it.
    assert onset(np.concatenate([constant(0, 2 * HOP), constant(8000, 1)])) is None


def test_the_onset_is_the_start_of_the_first_window() -> None:
    speech = np.concatenate([constant(0, 10 * HOP), constant(3000, 10 * HOP)])
    assert onset(speech) == 9 * HOP


def test_windows_are_20_ms_at_other_sample_rates() -> None:
    detector = AudibleOnset(8000)
    detector.feed(np.concatenate([constant(0, 800), constant(3000, 800)]))
    assert detector.sample == 720


@given(cuts=st.lists(st.integers(1, 4000), max_size=8), silence=st.integers(0, 4000))
def test_onset_does_not_depend_on_chunk_boundaries(cuts: list[int], silence: int) -> None:
    audio = np.concatenate([constant(0, silence), constant(2000, 2000)])
    assert onset(*np.split(audio, sorted(cuts))) == onset(audio)


@pytest.mark.parametrize("first", [1, 479, 480, 481, 719, 720])
def test_finds_the_onset_when_chunks_are_shorter_than_a_window(first: int) -> None:
    audio = constant(2000, 2000)
    assert onset(audio[:first], audio[first:]) == 0
