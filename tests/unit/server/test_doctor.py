"""The report of scripts.server.doctor, without a server; tests/e2e starts one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.server import doctor

LOG = """
W1128 23:40:11.345678 1234 pb_stub.cc:402] "QWEN3_TTS_MPSS is no setting; did you mean QWEN3_TTS_MPS?"
I1128 23:40:12.345678 1234 pb_stub.cc:401] "the talker agrees with its golden cases: batches 1, 2, worst distance 0.018"
I1128 23:40:12.345679 1234 server.cc:676] Started
W1128 23:40:13.345678 1234 pb_stub.cc:402] "cuBLAS leaves outputs of its products unwritten on this GPU"
W1128 23:40:13.445678 1234 pb_stub.cc:402] "cuBLAS leaves outputs of its products unwritten on this GPU"
I1128 23:40:14.345678 1234 pb_stub.cc:401] "code2wav agrees with its golden cases: 120 of 120 calls"
"""


def test_a_report_keeps_the_proofs_and_warnings_of_a_log_once() -> None:
    assert doctor.kept_lines(LOG) == [
        "QWEN3_TTS_MPSS is no setting; did you mean QWEN3_TTS_MPS?",
        "the talker agrees with its golden cases: batches 1, 2, worst distance 0.018",
        "cuBLAS leaves outputs of its products unwritten on this GPU",
        "code2wav agrees with its golden cases: 120 of 120 calls",
    ]


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {
        "QWEN3_TTS_MAX_STREAMS": "8",
        "QWEN3_TTS_ADMIN_KEY": "s3cret",
        "QWEN3_TTS_VOICES_DSN": "postgresql://s3cret",
    }
    for name, value in shown.items():
        monkeypatch.setenv(name, value)
    found = dict(doctor.settings())
    assert found["QWEN3_TTS_MAX_STREAMS"] == "8"
    assert "s3cret" not in str(found)
    assert set(shown) <= set(found)


def test_a_missing_checkpoint_and_codec_are_lines_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "code2wav" / "1").mkdir(parents=True)
    found = dict(doctor.models(str(tmp_path / "none"), tmp_path))
    assert "not a folder" in str(found["folder"])
    assert "python -m export" in str(found["code2wav"])


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert dict(doctor.gpus()) == {"driver": "nvidia-smi is not on PATH", "PyTorch": "sees no CUDA device"}


@pytest.mark.parametrize(
    ("ready", "code", "expected"),
    [([False, True], None, None), ([False], 137, "exit code 137"), ([False] * 1000, None, "not ready after 0.3 s")],
)
def test_a_start_ends_ready_dead_or_late(ready: list[bool], code: Any, expected: str | None) -> None:
    states = iter(ready)
    found = doctor.awaited(lambda: next(states), lambda: code, 0.3)
    assert found is None if expected is None else expected in str(found)
