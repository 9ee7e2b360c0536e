"""Resolves references and registered names of a Base checkpoint to voices, each encoded once."""

import logging
import re
import threading
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

import numpy as np

from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.request import InvalidRequest, RequestError, Unavailable, VoiceReference
from qwen3_tts_engine.threads import Worker
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.cache import VoiceCache
from qwen3_tts_engine.voices.record import Origin, VoiceRecord
from qwen3_tts_engine.voices.reference_audio import ReferenceAudio
from qwen3_tts_engine.voices.store import VoiceStore

log = logging.getLogger(__name__)

NAME = re.compile(r"\w[\w .-]{0,63}")
# Called once, from any thread.
OnVoice = Callable[[Voice | RequestError], None]
OnRecords = Callable[[list[VoiceRecord] | RequestError], None]
Result = TypeVar("Result")


class ReferenceEncoder(Protocol):
    """The encoder models. Called only on the encoder thread."""

    def encode(self, samples: np.ndarray, in_context: bool) -> Voice:
        """A voice without its text from float32 [samples] at 24 kHz. Raises RequestError."""

    def prime(self, voice: Voice) -> None:
        """Have the codec ready to speak in a voice. Raises RequestError."""


class Voices:
    """Resolves voices on four threads: look-ups and operations of the registry, checks of recordings, encoder calls.

    So a cached voice never waits for an encoder call or for another voice's registration, nor a recording for the
    registry. Concurrent requests for the same voice share one encoder call.
    """

    def __init__(
        self,
        encoder: ReferenceEncoder,
        store: VoiceStore,
        origin: Origin,
        config: EngineConfig,
        check_text: Callable[[str], None],
        max_cached: int,
        on_thread_start: Callable[[], None] = lambda: None,
    ) -> None:
        """`max_cached` voices are kept: as many as the codec is ready to speak in."""
        self._encoder, self._store, self._origin = encoder, store, origin
        self._max_seconds, self._max_waiting = config.max_reference_seconds, config.max_voice_requests
        self._check_text = check_text
        self._lock = threading.Lock()
        self._cache = VoiceCache(max_cached)
        self._in_flight: dict[Hashable, list[OnVoice]] = {}
        self._requests: set[OnVoice | OnRecords] = set()
        self._registry, self._operations, self._recordings, self._encoding = self._workers = [
            Worker(name, config.max_voice_requests, on_thread_start)
            for name in ("registry", "voice operations", "recordings", "encoders")
        ]

    def find(self, request: VoiceReference, callback: OnVoice) -> None:
        """Call `callback` with the voice of a request. Raises Unavailable."""
        if request.voice is None:
            self._submit(self._recordings, lambda: self._find_recorded(request, callback), callback)
        else:
            self._submit(self._registry, lambda: self._find_registered(request, callback), callback)

    def register(self, request: VoiceReference, callback: OnRecords) -> None:
        """Call `callback` with the record of a new voice. Raises InvalidRequest, Unavailable."""
        name = request.voice
        if name is None or not NAME.fullmatch(name):
            raise InvalidRequest("voice", name, "the name to register: up to 64 letters, digits, spaces, _, -, .")
        if request.ref_audio is None:
            raise InvalidRequest("ref_audio", None, "required to register a voice")
        self._submit(self._operations, lambda: self._register(name, request, callback), callback)

    def list(self, callback: OnRecords) -> None:
        """Call `callback` with the records of all voices. Raises Unavailable."""
        self._submit(self._operations, lambda: _call_back(callback, self._store.list()), callback)

    def delete(self, name: str | None, callback: OnRecords) -> None:
        """Call `callback` with the record of the deleted voice. Raises InvalidRequest, Unavailable."""
        if name is None:
            raise InvalidRequest("voice", None, "the name of the voice to delete is required")
        self._submit(self._operations, lambda: _call_back(callback, [self._store.delete(name)]), callback)

    def close(self) -> None:
        """Refuse pending requests and stop; safe to call twice."""
        for worker in self._workers:
            worker.close()
        with self._lock:
            pending: list[OnVoice | OnRecords] = [c for callbacks in self._in_flight.values() for c in callbacks]
            pending += self._requests
            self._in_flight.clear()
            self._requests.clear()
        for callback in pending:
            _call_back(callback, Unavailable("the server is shutting down"))
        self._store.close()

    def _submit(self, worker: Worker, job: Callable[[], None], callback: OnVoice | OnRecords) -> None:
        """Queue a job on a worker; its exceptions go to `callback`. Raises Unavailable."""

        def run() -> None:
            with self._lock:
                self._requests.discard(callback)
            try:
                job()
            except Exception as error:
                _call_back(callback, _as_request_error(error))

        with self._lock:
            self._requests.add(callback)
        try:
            worker.submit(run)
        except Unavailable:
            with self._lock:
                self._requests.discard(callback)
            raise

    def _find_registered(self, request: VoiceReference, callback: OnVoice) -> None:
        """Resolve a registered name; raises InvalidRequest for an unknown one and for another model's voice."""
        assert request.voice is not None
        record = self._store.get(request.voice)
        record.check_origin(self._origin)
        alone = request.x_vector_only

        def found(voice: Voice | RequestError) -> None:
            callback(voice.alone() if alone and isinstance(voice, Voice) else voice)

        self._fetch(("named", record.file), lambda: self._store.load(record), found)

    def _find_recorded(self, request: VoiceReference, callback: OnVoice) -> None:
        """Resolve a reference recording; raises InvalidRequest naming the invalid field."""
        assert request.ref_audio is not None
        audio = ReferenceAudio.of(request.ref_audio, request.ref_sample_rate, self._max_seconds)
        text = None if request.x_vector_only else request.ref_text
        if text is None and not request.x_vector_only:
            raise InvalidRequest("ref_text", None, "required: the transcript of ref_audio, unless x_vector_only is set")
        if text is not None:
            self._check_text(text)
            audio.check_transcript(text)
        self._fetch(("recorded", audio.digest(), text), lambda: self._encode(audio, text), callback)

    def _register(self, name: str, request: VoiceReference, callback: OnRecords) -> None:
        self._store.check_free(name)
        assert request.ref_audio is not None
        seconds = len(request.ref_audio) / (request.ref_sample_rate or 1)

        def found(voice: Voice | RequestError) -> None:
            if isinstance(voice, RequestError):
                callback(voice)
            else:
                self._submit_add(name, voice, seconds, callback)

        self._submit(self._recordings, lambda: self._find_recorded(request, found), callback)

    def _submit_add(self, name: str, voice: Voice, seconds: float, callback: OnRecords) -> None:
        try:
            self._submit(self._operations, lambda: self._add(name, voice, seconds, callback), callback)
        except Unavailable as error:
            callback(_as_request_error(error))

    def _add(self, name: str, voice: Voice, seconds: float, callback: OnRecords) -> None:
        record = self._store.add(name, voice, seconds, self._origin)
        with self._lock:
            self._cache.put(("named", record.file), voice)
        _call_back(callback, [record])

    def _encode(self, audio: ReferenceAudio, text: str | None) -> Voice:
        voice = self._encoder.encode(audio.resampled(), in_context=text is not None)
        return Voice(voice.x_vector, voice.codes, text)

    def _fetch(self, key: Hashable, make: Callable[[], Voice], callback: OnVoice) -> None:
        """Call `callback` with the voice of a key: cached, in flight or made now. Raises Unavailable."""
        with self._lock:
            voice = self._cache.get(key)
            if voice is None:
                if sum(map(len, self._in_flight.values())) >= self._max_waiting:
                    raise Unavailable(f"busy: {self._max_waiting} requests wait for the encoders")
                if key not in self._in_flight:
                    self._encoding.submit(lambda: self._make(key, make))
                self._in_flight.setdefault(key, []).append(callback)
        if voice is not None:
            _call_back(callback, voice)

    def _make(self, key: Hashable, make: Callable[[], Voice]) -> None:
        result: Voice | RequestError
        try:
            result = make()
            self._encoder.prime(result)
        except Exception as error:
            result = _as_request_error(error)
        with self._lock:
            if isinstance(result, Voice):
                self._cache.put(key, result)
            callbacks = self._in_flight.pop(key, [])
        for callback in callbacks:
            _call_back(callback, result)


def _call_back(callback: Callable[[Result], None], result: Result) -> None:
    """Isolates callers: an exception of one callback does not affect the others."""
    try:
        callback(result)
    except Exception:
        log.exception("the callback of a voice request failed")


def _as_request_error(error: Exception) -> RequestError:
    """Drops the traceback, which keeps the objects of its frames alive, requests to other models among them."""
    if isinstance(error, RequestError):
        error.__context__ = None
        return error.with_traceback(None)
    log.exception("making a voice failed", exc_info=error)
    return RequestError(f"internal error: {error}")
