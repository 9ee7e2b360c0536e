"""Rows of a record in docs/benchmarks match the summary of the run."""

from qwen3_tts_client.analysis.playback import NS
from qwen3_tts_client.analysis.summary import summarise
from qwen3_tts_client.records.timeline import Timeline
from scripts.benchmarks.serving import codec_calls, rows
from tests.unit.client.test_summary import request, run, stream


def test_rows_match_the_summary() -> None:
    refused = Timeline(0, end_ns=NS, outcome="unavailable")
    streams = [stream(0, 20_000, 0), stream(0, 22_000, 60_000), stream(0, 24_000, 0), refused]
    [row] = rows(summarise(run(*(request(number, one) for number, one in enumerate(streams)))))
    assert row | {"rtf_p50": 0, "audio_s_per_s": 0} == {
        "load": "c=2", "requests": 4, "ttfa_p50_ms": 22.0, "ttfa_p95_ms": 24.0, "rtf_p50": 0, "audio_s_per_s": 0,
        "stalled_over_50ms": 1, "largest_stall_ms": 60.0, "errors": 1,
    }  # fmt: skip
    assert 0.7 < row["rtf_p50"] < 0.9
    assert row["audio_s_per_s"] > 0


def test_a_load_without_audio_has_a_row() -> None:
    refused = Timeline(0, end_ns=NS, outcome="unavailable")
    [row] = rows(summarise(run(request(0, refused))))
    assert (row["requests"], row["errors"], row["ttfa_p50_ms"], row["stalled_over_50ms"]) == (1, 1, None, 0)


def test_codec_calls_are_counted_between_two_scrapes() -> None:
    labels, talker = '{model="code2wav",version="1"}', '{model="qwen3_tts",version="1"}'
    before = {
        f"nv_inference_exec_count{labels}": 10.0,
        f"qwen3_tts_codec_calls_total{talker}": 20.0,
        f"qwen3_tts_codec_chunks_total{talker}": 100.0,
        f"nv_inference_compute_infer_duration_us{labels}": 5_000.0,
        f"nv_inference_compute_infer_duration_us{talker}": 7.0,
        f"qwen3_tts_codec_seconds_count{talker}": 8.0,
        f"qwen3_tts_codec_seconds_sum{talker}": 1.0,
    }
    more = dict(zip(before, (4.0, 5.0, 10.0, 6_000.0, 1e6, 4.0, 0.01), strict=True))
    after = {name: value + more[name] for name, value in before.items()}
    expected = {"codec_calls": 5, "codec_rows": 2.0, "codec_call_ms": 2.5, "codec_own_ms": 1.5}
    assert codec_calls(before, after) == expected
    directly = {name: value for name, value in after.items() if not name.startswith("nv_inference")}
    assert codec_calls(before, before | directly) == {k: v for k, v in expected.items() if k != "codec_own_ms"}
    assert codec_calls({}, {}) == {}
