"""`qwen3-tts import`: converts a perf_analyzer export into a record.

perf_analyzer stops at the first failed request, so its exports contain none. They also omit the due times of an open
loop, so times count from sending.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qwen3_tts_client.analysis.results import conclude, open_records
from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_client.protocol import SAMPLE_RATE
from qwen3_tts_client.records.audible import AudibleOnset
from qwen3_tts_client.records.environment import environment
from qwen3_tts_client.records.record import FILE_NAME, LoadRecord, RequestRecord
from qwen3_tts_client.records.timeline import Timeline

_MODES = {"concurrency": "closed", "request_rate": "open"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("export", type=Path, help="output of perf_analyzer --profile-export-file")
    parser.add_argument("--artifact-dir", type=Path, metavar="DIR", required=True)


def run(args: argparse.Namespace) -> ExitCode:
    records = list(read_export(args.export))
    header = {"config": {"perf_analyzer": str(args.export)}, **environment()}
    writer = open_records(args.artifact_dir / FILE_NAME, header)
    for record in records:
        writer.append(record)
    return conclude(args.artifact_dir, prebuffer_ms=0)


def read_export(path: Path) -> Iterator[LoadRecord | RequestRecord]:
    """The loads of an export, each followed by its requests. Raises ClientError."""
    try:
        experiments = json.loads(path.read_text())["experiments"]
        for load, experiment in enumerate(experiments):
            yield _load(load, experiment)
            for index, request in enumerate(experiment["requests"]):
                yield _request(load, index, request)
    except OSError as error:
        raise ClientError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ClientError(f"{path}: not a profile export of perf_analyzer: {error!r}") from None


def _load(load: int, experiment: dict[str, Any]) -> LoadRecord:
    settings, window = experiment["experiment"], experiment["window_boundaries"]
    return LoadRecord(load, _MODES[settings["mode"]], settings["value"], window[0], window[-1], window[-1])


def _request(load: int, index: int, request: dict[str, Any]) -> RequestRecord:
    inputs = request["request_inputs"]
    return RequestRecord(
        load=load,
        index=index,
        phase="measure",
        worker=0,
        prompt=f"request-{index}",
        language=inputs.get("language"),
        text_chars=len(inputs["text"]),
        timeline=_timeline(request),
    )


def _timeline(request: dict[str, Any]) -> Timeline:
    # Only a list is a waveform: an empty response, such as the final one, has another value there.
    chunks = [
        (arrival_ns, outputs["waveform"])
        for arrival_ns, outputs in zip(request["response_timestamps"], request["response_outputs"], strict=True)
        if isinstance(outputs.get("waveform"), list)
    ]
    onset = AudibleOnset(SAMPLE_RATE)
    for _, waveform in chunks:
        onset.feed(np.array(waveform, np.int16))
    return Timeline(
        sent_ns=request["timestamp"],
        arrivals_ns=[arrival_ns for arrival_ns, _ in chunks],
        samples=[len(waveform) for _, waveform in chunks],
        onset_sample=onset.sample,
        end_ns=request["response_timestamps"][-1],
        outcome="ok" if chunks else "error",
        error=None if chunks else "the stream ended without audio",
    )
