from hypothesis import given
from hypothesis import strategies as st

from qwen3_tts_client.analysis.playback import NS, Playback, duration_ns, play, share_within

MS = 1_000_000
FRAME = 1920  # 80 ms
RATE = 24_000


def at(*times_ms: float) -> list[int]:
    return [round(time * MS) for time in times_ms]


def test_chunks_on_time_play_without_gaps() -> None:
    playback = play(at(100, 150, 260), [FRAME] * 3, RATE)
    assert playback == Playback(tuple(at(100, 180, 260)), (0, 0, 0), 0)


def test_a_stall_equals_the_lateness_of_its_chunk_and_delays_later_deadlines() -> None:
    # Deadlines 180, then 230.001 + 80 = 310.001, then 315.5 + 80 = 395.5.
    playback = play(at(100, 230.001, 315.5, 390), [FRAME] * 4, RATE)
    assert playback.stalls_ns == (0, 50_001_000, 5_499_000, 0)
    assert playback.starts_ns == tuple(at(100, 230.001, 315.5, 395.5))
    assert playback.largest_stall_ns == 50_001_000
    assert playback.stalled_ns == 55_500_000
    assert playback.underruns == 2


def test_deadlines_are_fixed_without_rebuffering() -> None:
    # Deadlines 180, 260, 340, regardless of late chunks.
    assert play(at(100, 200, 290, 330), [FRAME] * 4, RATE).lateness_ns == 30 * MS


def test_prebuffer_delays_the_start() -> None:
    playback = play(at(100, 230), [FRAME] * 2, RATE, prebuffer_ns=40 * MS)
    assert playback.starts_ns == tuple(at(140, 230))
    assert playback.stalls_ns == (0, 10 * MS)


def test_deadlines_follow_chunk_durations() -> None:
    assert play(at(0, 70, 235), [FRAME, 2 * FRAME, FRAME], RATE).stalls_ns == (0, 0, 0)
    assert play(at(0, 70, 245), [FRAME, 2 * FRAME, FRAME], RATE).stalls_ns == (0, 0, 5 * MS)


def test_rounding_errors_do_not_accumulate() -> None:
    # A thousand chunks of one sample at 24 kHz: 1000/24000 s, not 1000 times a rounded 41 666 ns.
    playback = play([0] * 1001, [1] * 1001, RATE)
    assert playback.starts_ns[-1] == 1000 * NS // RATE


def test_share_within_includes_the_limit() -> None:
    assert share_within([0, 50 * MS, 50 * MS + 1, 100 * MS], 50 * MS) == 0.5
    assert share_within([], 50 * MS) is None


def test_playback_without_chunks_is_empty() -> None:
    assert play([], [], RATE) == Playback((), (), 0)


@given(
    gaps=st.lists(st.integers(0, 500 * MS), min_size=1, max_size=40),
    frames=st.lists(st.integers(1, 8), min_size=40, max_size=40),
    prebuffer_ms=st.integers(0, 200),
)
def test_total_stall_with_rebuffering_equals_lateness_without(
    gaps: list[int], frames: list[int], prebuffer_ms: int
) -> None:
    arrivals = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    samples = [FRAME * count for count in frames[: len(gaps)]]
    playback = play(arrivals, samples, RATE, prebuffer_ms * MS)
    assert playback.stalled_ns == playback.lateness_ns
    assert playback.largest_stall_ns <= playback.lateness_ns
    for n in range(1, len(gaps)):
        assert playback.starts_ns[n] >= max(arrivals[n], playback.starts_ns[n - 1] + duration_ns(samples[n - 1], RATE))
