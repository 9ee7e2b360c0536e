"""Parses Triton requests."""

import logging
from typing import Any

import numpy as np

from qwen3_tts_engine import metrics
from qwen3_tts_engine.config import MAX_REFERENCE_RATE, MAX_REFERENCE_SECONDS
from qwen3_tts_engine.metrics import Recorder
from qwen3_tts_engine.process.parent import EngineProcess
from qwen3_tts_engine.request import SEQUENCE_ID, InvalidRequest, RequestError, SequencePosition
from triton_adapter.responses import CancelWatcher, ResponseSink

log = logging.getLogger("qwen3_tts")

AUDIO_FIELD = "ref_audio"
MAX_SAMPLES = MAX_REFERENCE_SECONDS * MAX_REFERENCE_RATE
# Answered at once, whatever the load: whether streams work (scripts/server/stream_check.py).
CHECK = {"operation": "check"}
# TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END.
SEQUENCE_START, SEQUENCE_END = 1, 2


def accept(request: Any, engine: EngineProcess, watcher: CancelWatcher, recorder: Recorder) -> None:
    """Parse a Triton request and hand it to the engine. `recorder` counts those that are refused here."""
    sink = ResponseSink(request.get_response_sender(), watcher)
    try:
        fields = read_fields(request)
        if fields == CHECK:
            sink.finish(None)
            return
        engine.accept(fields, sink, read_position(request))
    except RequestError as error:
        _refuse(sink, error, recorder)
    except Exception as error:
        log.exception("request %s failed before it was queued", sink.key)
        _refuse(sink, RequestError(f"internal error: {error}"), recorder)
    sink.watch()


def _refuse(sink: ResponseSink, error: RequestError, recorder: Recorder) -> None:
    recorder.count(metrics.REQUESTS, label=error.outcome.value)
    sink.finish(error)


def read_position(request: Any) -> SequencePosition | None:
    """A request's position in its sequence; None outside of one. Raises InvalidRequest."""
    sequence_id, flags = request.correlation_id(), request.flags()
    start, last = bool(flags & SEQUENCE_START), bool(flags & SEQUENCE_END)
    if sequence_id:
        return SequencePosition(sequence_id, start, last)
    if start or last:
        raise InvalidRequest(SEQUENCE_ID, sequence_id, "sequence_start and sequence_end require one that is not 0")
    return None


def read_fields(request: Any) -> dict[str, Any]:
    """Tensors to Python values; raises InvalidRequest. Triton has checked data types and shapes."""
    fields: dict[str, Any] = {}
    for tensor in request.inputs():
        name, values = tensor.name(), tensor.as_numpy().reshape(-1)
        if name == AUDIO_FIELD:
            fields[name] = _copy_samples(values)
        else:
            fields[name] = _text(name, values[0]) if values.dtype == object else values[0].item()
    return fields


def _copy_samples(samples: np.ndarray) -> np.ndarray:
    """A copy, since the request's memory is freed before the encoders read it. Raises InvalidRequest for too many."""
    if len(samples) > MAX_SAMPLES:
        raise InvalidRequest(AUDIO_FIELD, samples, f"at most {MAX_SAMPLES} samples")
    return samples.copy()


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(name, value, "must be UTF-8") from None
