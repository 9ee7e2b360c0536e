"""The benchmark of the host's part of a first audio."""

from scripts.lab.host_path import FRAMES, NAMES, measure, running


def test_every_step_of_a_stream_is_timed() -> None:
    times: dict[str, float] = {}
    with running(times) as (engine, writer):
        rows = [measure(engine, writer, str(i), times) for i in range(2)]
        assert engine.recorder.take().counted["qwen3_tts_frames_total", ""] == 2 * FRAMES
    for *steps, whole in rows:
        assert len(steps) == len(NAMES) - 1
        assert min(steps) > 0
        assert whole == sum(steps)
