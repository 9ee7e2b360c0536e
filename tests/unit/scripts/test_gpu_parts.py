"""Rows of scripts.benchmarks.gpu_parts."""

from qwen3_tts_client.analysis.summary import summarise
from scripts.benchmarks.gpu_parts import rows_of
from tests.unit.client.test_summary import request, run, stream


def test_a_row_names_path_share_and_load() -> None:
    streams = [stream(0, 22_000, 60_000)]
    summary = {"loads": summarise(run(*(request(number, one) for number, one in enumerate(streams))))}
    [row] = rows_of("general", 40, summary)
    assert (row["path"], row["share"], row["load"], row["stalled_over_50ms"]) == ("general", 40, "c=2", 1)
    assert row["ttfa_p50_ms"] == 22.0
    assert row["audio_s_per_s"] > 0
