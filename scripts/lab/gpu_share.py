"""The share of the time in which the GPU runs graphs of the talker and of the codec, in a server under load."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qwen3_tts_client.analysis.table import load_name
from qwen3_tts_client.records.record import LoadRecord, read_run
from scripts.benchmarks.serving import REPOSITORY, ROOT, run, run_bench, server_of
from scripts.lab.gpu_trace.spans import VARIABLE

# Models of the processes, as in the names of the files.
PROCESSES = {"talker": "qwen3_tts", "codec": "code2wav"}
HOOK = "scripts.lab.gpu_trace.hook"
# Their first modules.
ENTRIES = ("qwen3_tts/1/engine_process.py", "code2wav/1/model.py")
MEASUREMENT_MS, MAX_FRAMES = 4000, 71
Spans = np.ndarray
"""int64 [n, 2]: starts and ends in ns, in order and apart."""


def measure(checkpoint: str, streams: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """A row for each closed loop of so many streams; `folder` gets the server's log and the client's record."""
    trace = folder.resolve() / "gpu"
    trace.mkdir(parents=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", "python")
    bench = ["bench", "--concurrency", ",".join(map(str, streams)), "--artifact-dir", folder, "--workers", 8]
    bench += ["--measurement-interval", MEASUREMENT_MS, "--max-frames", MAX_FRAMES, "--speaker", "vivian"]
    traced, variables = traced_copy(REPOSITORY, folder / "model_repository"), {VARIABLE: str(trace)}
    with server_of(checkpoint, max(streams), folder / "server.log", [], variables=variables, repository=traced):
        run_bench(*bench)
    spans = {process: read(trace, model) for process, model in PROCESSES.items()}
    return [row(load, spans) for load in read_run(folder).loads]


def traced_copy(repository: Path, copy: Path) -> Path:
    """A copy whose processes trace their graphs."""
    shutil.copytree(repository, copy)
    for entry in ENTRIES:
        text = (copy / entry).read_text()
        (copy / entry).write_text(f"import sys\nsys.path.append({str(ROOT)!r})\nimport {HOOK}\n{text}")
    return copy


def row(load: LoadRecord, spans: Mapping[str, Spans]) -> dict[str, Any]:
    found = shares(spans["talker"], spans["codec"], load.start_ns, load.stop_ns)
    return {"load": load_name(load.mode, load.value)} | {name: f"{share:.1%}" for name, share in found.items()}


def read(folder: Path, model: str) -> Spans:
    """Spans of all processes of a model. Raises ValueError if there are none."""
    spans = [line.split() for file in folder.glob(f"{model}-*") for line in file.read_text().splitlines()]
    if not spans:
        raise ValueError(f"{folder}: no spans of {model}: its process replayed no CUDA graph")
    return apart(np.array(spans, np.int64))


def shares(talker: Spans, codec: Spans, start_ns: int, stop_ns: int) -> dict[str, float]:
    """Shares of the time from `start_ns` to `stop_ns`: each process, both at the same time, neither."""
    whole = stop_ns - start_ns
    either, *each = (
        length(apart(np.clip(spans, start_ns, stop_ns))) / whole
        for spans in (np.concatenate([talker, codec]), talker, codec)
    )
    return {"talker": each[0], "codec": each[1], "both": sum(each) - either, "neither": 1 - either}


def apart(spans: np.ndarray) -> Spans:
    """Spans in order, those that overlap merged."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(spans[:, 1])
    is_first = np.append(True, spans[1:, 0] > ends[:-1])
    return np.stack([spans[is_first, 0], ends[np.append(is_first[1:], True)]], axis=1)


def length(spans: Spans) -> int:
    return int((spans[:, 1] - spans[:, 0]).sum())
