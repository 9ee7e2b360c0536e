"""`bench` and perf_analyzer against a real tritonserver."""

import json
import os
import subprocess
from pathlib import Path

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.analysis.summary import summarise
from qwen3_tts_client.errors import ExitCode
from qwen3_tts_client.records.record import read_run
from scripts.server.tritonserver import TritonServer

ROOT = Path(__file__).parents[2]


def test_bench_and_report_include_server_metrics(scripted: TritonServer, tmp_path: Path) -> None:
    url, metrics_url = f"localhost:{scripted.ports.grpc}", f"http://localhost:{scripted.ports.metrics}/metrics"
    flags = ["--concurrency", "4", "--measurement-interval", "2000", "--stagger-ms", "0", "--max-frames", "20"]
    target = ["--url", url, "--metrics-url", metrics_url, "--speaker", "vivian"]
    assert main(["bench", *target, *flags, "--artifact-dir", str(tmp_path / "run")]) == ExitCode.OK
    (row,) = summarise(read_run(tmp_path / "run"))
    assert row["outcomes"] == {"ok": row["requests"]}
    assert row["requests"] >= 4
    assert main(["report", str(tmp_path / "run")]) == ExitCode.OK
    page = (tmp_path / "run" / "report.html").read_text()
    for name in ("Inside the server", "admission wait", "prefill", "tick", "chunk wait", "codec", "send"):
        assert name in page


def test_perf_analyzer_measures_closed_and_open_loops(scripted: TritonServer, tmp_path: Path) -> None:
    settings = {"CONCURRENCY": "2", "RATE": "4", "INTERVAL": "1200", "OUTPUT": str(tmp_path / "run")}
    environment = os.environ | settings | {"URL": f"localhost:{scripted.ports.grpc}"}
    script = [str(ROOT / "scripts" / "perf_analyzer.sh"), "qwen3_tts"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, mode in {"concurrency": "closed", "request_rate": "open"}.items():
        (row,) = json.loads((tmp_path / "run" / name / "summary.json").read_text())["loads"]
        assert row["mode"] == mode
        assert row["outcomes"] == {"ok": row["requests"]}
        assert row["requests"] > 2
        assert row["ttfa_ms"]["p50"] < row["e2el_ms"]["p50"]
