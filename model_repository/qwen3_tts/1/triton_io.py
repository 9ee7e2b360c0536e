"""Everything that touches Triton: tensors, responses, cancellation, the codec call, metrics, logs."""

import itertools
import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from qwen3_tts_engine import audio, metrics
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.codec.states import CodecStates, invalid_codes, overflowed, to_pcm
from qwen3_tts_engine.core import Chunks
from qwen3_tts_engine.engine import Engine
from qwen3_tts_engine.frontend.sequences import SEQUENCE_ID, SequencePiece
from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.lifecycle.liveness import CallWatch
from qwen3_tts_engine.request import Cancelled, InvalidRequest, Outcome, RequestError, ServerStarting, Unavailable
from qwen3_tts_engine.voices.reference_audio import own_samples
from qwen3_tts_engine.worker import Worker

log = logging.getLogger("qwen3_tts")
# Calls of other models that have no answer yet.
CALLS = CallWatch()

TEXT_FIELDS = ("operation", "text", "language", "speaker", "instruct", "voice", "ref_text")
AUDIO_FIELD = "ref_audio"
WAVEFORM, SAMPLE_RATE, VOICES = "waveform", "sample_rate", "voices"
# Names, not values: while Triton completes the configuration, its module has no TritonError yet.
STATUS = {
    Outcome.INVALID: "INVALID_ARG",
    Outcome.UNAVAILABLE: "UNAVAILABLE",
    Outcome.CANCELLED: "CANCELLED",
    Outcome.ERROR: "INTERNAL",
}
# TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END.
SEQUENCE_START, SEQUENCE_END = 1, 2
CPU = torch.device("cpu")
SERVER_STARTS = "Server not ready"
MODEL_IS_GONE = ("no available versions", "is not ready")
# At most this many cancel checks (a message to Triton and back, 0.1 ms) in each period, and one of a stream in each
# interval.
CANCEL_CHECKS = 16
CANCEL_PERIOD = 0.004
CANCEL_INTERVAL = 0.02
# From the moment at which a stream's cancel is seen to its FINAL. Triton's gRPC front end releases such a stream on the
# first event behind FINAL, and touches it again on the second: there must be no write of it left on its way by then.
CANCEL_SETTLE = 0.25
METRICS_PERIOD = 0.5


class Desk(Protocol):
    """Who takes requests (triton_voices.Desk)."""

    engine: Engine

    def accept(self, fields: dict[str, Any], sink: "ResponseSink", piece: SequencePiece | None) -> None:
        """Raises RequestError for a request that is refused at once."""


def accept(request: Any, gate: Gate, intake: Worker, desk: "Desk", watcher: "CancelWatcher") -> None:
    """Hand a Triton request on to the intake's thread, once the gate is open.

    Here it is only read, so that no request delays the next one; one that is refused at once is answered here.
    """
    sink = ResponseSink(request.get_response_sender(), watcher)

    def enter() -> None:
        take = partial(desk.accept, read_fields(request), sink, read_piece(request))
        submit = partial(intake.submit, partial(_answer, take, sink, desk.engine))
        gate.enter(partial(_answer, submit, sink, desk.engine))

    _answer(enter, sink, desk.engine)
    sink.watch()


def _answer(take: Callable[[], None], sink: "ResponseSink", engine: Engine) -> None:
    """Refuse the request that `take` raises for."""
    try:
        take()
    except RequestError as error:
        engine.refuse(sink, error)
    except Exception as error:
        log.exception("request %s failed before it was queued", sink.key)
        engine.refuse(sink, RequestError(f"internal error: {error}"))


def read_piece(request: Any) -> SequencePiece | None:
    """Where a request stands in a sequence of requests, if it does. Raises InvalidRequest."""
    sequence_id, flags = request.correlation_id(), request.flags()
    start, last = bool(flags & SEQUENCE_START), bool(flags & SEQUENCE_END)
    if sequence_id:
        return SequencePiece(sequence_id, start, last)
    if start or last:
        raise InvalidRequest(SEQUENCE_ID, sequence_id, "sequence_start and sequence_end need one that is not 0")
    return None


def read_fields(request: Any) -> dict[str, Any]:
    """Tensors to values; raises InvalidRequest. Triton itself has checked data types and shapes."""
    fields: dict[str, Any] = {}
    for tensor in request.inputs():
        name, values = tensor.name(), tensor.as_numpy().reshape(-1)
        if name == AUDIO_FIELD:
            fields[name] = own_samples(values)
        else:
            fields[name] = _text(name, values[0]) if name in TEXT_FIELDS else values[0].item()
    return fields


class ResponseSink:
    """One request's way back (stream.Sink). FINAL is sent once, whoever comes first.

    Audio that comes behind an error is dropped; behind an end without error it would be lost.
    """

    def __init__(self, sender: Any, watcher: "CancelWatcher") -> None:
        # The client's request id may be empty or used twice; it never becomes a key.
        self.key = uuid.uuid4().hex
        self.arrived = time.perf_counter()
        self._sender: Any | None = sender
        self._watcher = watcher
        self._lock = threading.Lock()
        self._started = self._completed = False

    def watch(self) -> None:
        """Notice when the client goes; for a request that was not refused at once."""
        with self._lock:
            if self._sender is not None:
                self._watcher.watch(self)

    def send(self, pcm: np.ndarray) -> None:
        with self._lock:
            assert not self._completed, "audio behind the end of a stream"
            if self._sender is None:
                return
            outputs = [pb_utils.Tensor(WAVEFORM, pcm)]
            if not self._started:
                outputs.append(pb_utils.Tensor(SAMPLE_RATE, np.array([audio.SAMPLE_RATE], np.int32)))
            self._started = True
            self._sender.send(pb_utils.InferenceResponse(outputs))

    def reply(self, voices: list[str]) -> None:
        """Answer an operation on voices, whole."""
        with self._lock:
            if self._sender is not None:
                encoded = np.array([voice.encode() for voice in voices], np.object_)
                self._sender.send(pb_utils.InferenceResponse([pb_utils.Tensor(VOICES, encoded)]))
        self.finish(None)

    def finish(self, error: RequestError | None) -> None:
        with self._lock:
            # Dropped, not only marked: the model cannot be unloaded while anyone holds a response sender.
            sender, self._sender = self._sender, None
            if sender is None:
                return
            self._completed = error is None
            self._watcher.forget(self)
            if isinstance(error, Cancelled) or (self._started and sender.is_cancelled()):
                self._watcher.settle(partial(_send_final, sender, error))
            else:
                _send_final(sender, error)

    def is_cancelled(self) -> bool:
        """Whether the client has gone. Under the lock: asking about a stream that has ended crashes Triton."""
        with self._lock:
            return self._sender is not None and self._sender.is_cancelled()


class CancelWatcher:
    """Asks Triton, stream by stream, whether the client has gone, at a bounded rate and only while streams live.

    A stream is first asked about CANCEL_INTERVAL after it was accepted: one that ends at once costs no message. The
    engine lets go of a cancelled stream at once; its FINAL is sent CANCEL_SETTLE later.

    `expire` is called as often: it ends those of whom nothing is heard any more.
    """

    def __init__(self, cancel: Callable[[str], None], expire: Callable[[], None]) -> None:
        self._cancel = cancel
        self._expire = expire
        # When each is due, in monotonic seconds: the stream that was asked about longest ago comes first.
        self._due: dict[ResponseSink, float] = {}
        # What ends cancelled streams, and when, in monotonic seconds.
        self._ends: deque[tuple[float, Callable[[], None]]] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cancel", daemon=True)
        self._thread.start()

    def watch(self, sink: ResponseSink) -> None:
        with self._changed:
            self._due[sink] = time.monotonic() + CANCEL_INTERVAL
            self._changed.notify()

    def forget(self, sink: ResponseSink) -> None:
        with self._changed:
            self._due.pop(sink, None)

    def settle(self, end: Callable[[], None]) -> None:
        """Call `end` in CANCEL_SETTLE."""
        with self._changed:
            self._ends.append((time.monotonic() + CANCEL_SETTLE, end))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._changed.notify()
        self._thread.join()
        self._end_settled(math.inf)

    def _run(self) -> None:
        while not self._closed.wait(CANCEL_PERIOD):
            self._expire()
            self._end_settled(time.monotonic())
            for sink in self._next():
                if sink.is_cancelled():
                    self._cancel(sink.key)

    def _next(self) -> list[ResponseSink]:
        """The streams whose turn it is; waits while there are none."""
        with self._changed:
            while not self._due and not self._ends and not self._closed.is_set():
                self._changed.wait()
            now = time.monotonic()
            turn = [sink for sink, due in itertools.islice(self._due.items(), CANCEL_CHECKS) if due <= now]
            for sink in turn:
                del self._due[sink]
                self._due[sink] = now + CANCEL_INTERVAL
            return turn

    def _end_settled(self, now: float) -> None:
        # One thread takes from the front.
        while self._ends and self._ends[0][0] <= now:
            _, end = self._ends.popleft()
            try:
                end()
            except Exception:
                log.exception("a cancelled stream's end could not be sent")


def _send_final(sender: Any, error: RequestError | None) -> None:
    final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    if error is None:
        sender.send(flags=final)
    else:
        sender.send(pb_utils.InferenceResponse(error=_triton_error(error)), flags=final)


class BlsCodec:
    """The codec client (contracts.CodecClient): one call to code2wav for a whole group of chunks.

    States travel with the call, as any backend takes them.
    """

    def __init__(self, states: CodecStates) -> None:
        self.states = states

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        with self.states.on_stream():
            pcm, failed = self._decode(chunks, self.states.rows(chunks))
        return pcm, failed | invalid_codes(chunks)

    def _decode(self, chunks: Chunks, rows: np.ndarray) -> tuple[np.ndarray, dict[int, RequestError]]:
        inputs = {
            contract.CODES: self.states.codes(chunks),
            contract.STATE: self.states.gather(rows),
            contract.HISTORY: torch.from_numpy(self.states.history(chunks)),
        }
        outputs = (contract.WAVEFORM, contract.STATE_OUT)
        waveform, state_out = call_model(contract.MODEL_NAME, inputs, outputs, self.states.device)
        self.states.store(rows, state_out)
        # Brings the samples to the host, and so waits until the states are stored too.
        return to_pcm(waveform)


class SharedStatesCodec(BlsCodec):
    """States stay where they are, and nothing of a call is on a device: code2wav maps them.

    A call with tensors on a GPU goes through three processes, each of which waits for the others' copies: at one
    stream it took 3.5 ms beside the codec's own time (measured on one H200).
    """

    def _decode(self, chunks: Chunks, rows: np.ndarray) -> tuple[np.ndarray, dict[int, RequestError]]:
        places = torch.from_numpy(np.concatenate([rows, self.states.history(chunks)], axis=1))
        inputs = {contract.CODES: self.states.codes(chunks), contract.PLACES: places}
        # The other process knows nothing of this stream, which may still bring a voice's state.
        self.states.wait()
        parameters = {contract.STATES: self.states.address}
        [pcm] = call_model(contract.MODEL_NAME, inputs, [contract.PCM], CPU, parameters)
        samples = pcm.numpy()
        return samples, overflowed(samples)


class MetricsReporter:
    """Hands the engine's readings to Triton's metrics endpoint twice a second: each one costs a message."""

    def __init__(self, recorder: metrics.Recorder, labels: dict[str, str]) -> None:
        self._recorder = recorder
        self._metrics: dict[tuple[str, str], Any] = {}
        self._families = [self._register(metric, labels) for metric in metrics.METRICS]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _register(self, metric: metrics.Metric, labels: dict[str, str]) -> Any:
        kind = getattr(pb_utils.MetricFamily, metric.kind.upper())
        family = pb_utils.MetricFamily(name=metric.name, description=metric.help, kind=kind)
        options = {"buckets": list(metric.buckets)} if metric.buckets else {}
        for extra in metric.labels:
            self._metrics[metric.name, *extra.values()] = family.Metric(labels=labels | extra, **options)
        return family

    def _run(self) -> None:
        while not self._closed.wait(METRICS_PERIOD):
            try:
                self._report(self._recorder.take())
            except Exception:
                log.exception("metrics were lost")

    def _report(self, readings: metrics.Readings) -> None:
        for name, values in readings.observed.items():
            for value in values:
                self._metrics[(name,)].observe(value)
        for (name, label), amount in readings.counted.items():
            self._metrics[(name, label) if label else (name,)].increment(amount)
        for name, value in readings.gauges.items():
            self._metrics[(name,)].set(value)


class TritonLogHandler(logging.Handler):
    """Sends the engine's log to Triton's."""

    def emit(self, record: logging.LogRecord) -> None:
        write = pb_utils.Logger.log_error if record.levelno >= logging.ERROR else pb_utils.Logger.log_info
        if record.levelno == logging.WARNING:
            write = pb_utils.Logger.log_warn
        write(self.format(record))


def log_through_triton() -> None:
    for name in ("qwen3_tts", "qwen3_tts_engine"):
        logger = logging.getLogger(name)
        logger.handlers = [TritonLogHandler()]
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _triton_error(error: RequestError) -> Any:
    # A gRPC stream carries an error's text alone, so the text names the code as well.
    code = STATUS[error.outcome]
    return pb_utils.TritonError(f"{code}: {error}", getattr(pb_utils.TritonError, code))


def call_model(
    model: str,
    inputs: dict[str, torch.Tensor],
    outputs: Sequence[str],
    device: torch.device,
    parameters: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Outputs of another model, on `device` where Triton can; raises RequestError."""
    kind = pb_utils.TRITONSERVER_MEMORY_GPU if device.type == "cuda" else pb_utils.TRITONSERVER_MEMORY_CPU
    request = pb_utils.InferenceRequest(
        model_name=model,
        requested_output_names=list(outputs),
        inputs=[pb_utils.Tensor.from_dlpack(name, tensor) for name, tensor in inputs.items()],
        preferred_memory=pb_utils.PreferredMemory(kind, device.index or 0),
        parameters=parameters or {},
    )
    with CALLS.call(model):
        response = request.exec()
    if response.has_error():
        raise _model_error(model, response.error())
    return [torch.from_dlpack(pb_utils.get_output_tensor_by_name(response, name).to_dlpack()) for name in outputs]


def _model_error(model: str, error: Any) -> RequestError:
    if SERVER_STARTS in error.message():
        return ServerStarting(f"{model}: {error.message()}")
    # A server that is going down takes no more calls from its own models. Triton reports some of that as INTERNAL.
    gone = error.code() == pb_utils.TritonError.UNAVAILABLE or any(sign in error.message() for sign in MODEL_IS_GONE)
    return (Unavailable if gone else RequestError)(f"{model}: {error.message()}")


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(name, value, "must be UTF-8") from None
