"""The voices of a Base checkpoint: from a reference or a name to a Voice, each made once."""

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
from qwen3_tts_engine.voices.reference_audio import ReferenceAudio, frames, log_mel
from qwen3_tts_engine.voices.store import VoiceStore

log = logging.getLogger(__name__)

NAME = re.compile(r"\w[\w .-]{0,63}")
MIB = 1 << 20
# Told a voice, or why there is none; called once, from any thread.
Then = Callable[[Voice | RequestError], None]
ThenRecords = Callable[[list[VoiceRecord] | RequestError], None]
Answer = TypeVar("Answer")


class ReferenceEncoder(Protocol):
    """The models that read a reference. Only the encoding thread calls it."""

    def encode(self, audio: np.ndarray, mel: np.ndarray, num_samples: int, in_context: bool) -> Voice:
        """`audio` float32 [frames, 1920], `mel` float32 [mels, 128] -> the voice without its text.

        Raises RequestError.
        """

    def adopt(self, voice: Voice) -> Voice:
        """A voice from the store with its state where the codec runs."""


class Voices:
    """Three threads: one reads and writes the registry, one looks at recordings, one calls the encoders.

    So no voice at hand waits for another, nor a recording for the registry. Requests for the same voice share one call
    of the encoders.
    """

    def __init__(
        self,
        encoder: ReferenceEncoder,
        store: VoiceStore,
        origin: Origin,
        config: EngineConfig,
        check_text: Callable[[str], None],
        on_thread_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._encoder, self._store, self._origin = encoder, store, origin
        self._max_seconds, self._max_waiting = config.max_reference_seconds, config.max_voice_requests
        self._check_text = check_text
        self._lock = threading.Lock()
        self._cache = VoiceCache(config.voice_cache_mib * MIB)
        self._flights: dict[Hashable, list[Then]] = {}
        self._requests: set[Then | ThenRecords] = set()
        self._registry, self._looking, self._encoding = (
            Worker(name, config.max_voice_requests, on_thread_start) for name in ("registry", "recordings", "encoders")
        )

    def find(self, request: VoiceReference, then: Then) -> None:
        """Call `then` with the voice that a request asks for. Raises Unavailable."""
        if request.voice is None:
            self._do(self._looking, lambda: self._recorded(request, then), then)
        else:
            self._do(self._registry, lambda: self._named(request, then), then)

    def register(self, request: VoiceReference, then: ThenRecords) -> None:
        """Call `then` with the record of a new voice. Raises InvalidRequest, Unavailable."""
        name = request.voice
        if name is None or not NAME.fullmatch(name):
            raise InvalidRequest("voice", name, "the name to register: up to 64 letters, digits, spaces, _, -, .")
        if request.ref_audio is None:
            raise InvalidRequest("ref_audio", None, "required to register a voice")
        self._do(self._registry, lambda: self._register(name, request, then), then)

    def list(self, then: ThenRecords) -> None:
        """Call `then` with the records of all voices. Raises Unavailable."""
        self._do(self._registry, lambda: _tell(then, self._store.list()), then)

    def delete(self, name: str | None, then: ThenRecords) -> None:
        """Call `then` with the record of the deleted voice. Raises InvalidRequest, Unavailable."""
        if name is None:
            raise InvalidRequest("voice", None, "the name of the voice to delete is required")
        self._do(self._registry, lambda: _tell(then, [self._store.delete(name)]), then)

    def close(self) -> None:
        """Refuse requests that still wait, and stop; safe to call twice."""
        for worker in (self._registry, self._looking, self._encoding):
            worker.close()
        with self._lock:
            waiting: list[Then | ThenRecords] = [then for flight in self._flights.values() for then in flight]
            waiting += self._requests
            self._flights.clear()
            self._requests.clear()
        for then in waiting:
            _tell(then, Unavailable("the server is shutting down"))
        self._store.close()

    def _do(self, worker: Worker, job: Callable[[], None], then: Then | ThenRecords) -> None:
        """Do a job on a worker's thread; what it raises goes to `then`. Raises Unavailable."""

        def done() -> None:
            with self._lock:
                self._requests.discard(then)
            try:
                job()
            except Exception as error:
                _tell(then, _as_request_error(error))

        with self._lock:
            self._requests.add(then)
        try:
            worker.submit(done)
        except Unavailable:
            with self._lock:
                self._requests.discard(then)
            raise

    def _named(self, request: VoiceReference, then: Then) -> None:
        """The voice of a name; raises InvalidRequest for one that is not registered, or was made elsewhere."""
        assert request.voice is not None
        record = self._store.get(request.voice)
        record.check_origin(self._origin)
        alone = request.x_vector_only
        found: Then = (lambda voice: then(voice.alone() if isinstance(voice, Voice) else voice)) if alone else then
        self._fetch(("named", record.id), lambda: self._encoder.adopt(self._store.load(record)), found)

    def _recorded(self, request: VoiceReference, then: Then) -> None:
        """The voice of a reference; raises InvalidRequest naming the field that is wrong."""
        assert request.ref_audio is not None
        audio = ReferenceAudio.of(request.ref_audio, request.ref_sample_rate, self._max_seconds)
        text = None if request.x_vector_only else request.ref_text
        if text is None and not request.x_vector_only:
            raise InvalidRequest("ref_text", None, "required: what is said in ref_audio, unless x_vector_only is true")
        if text is not None:
            self._check_text(text)
        self._fetch(("recorded", audio.digest(), text), lambda: self._encode(audio, text), then)

    def _register(self, name: str, request: VoiceReference, then: ThenRecords) -> None:
        self._store.check_free(name)
        assert request.ref_audio is not None
        seconds = len(request.ref_audio) / (request.ref_sample_rate or 1)

        def found(voice: Voice | RequestError) -> None:
            if isinstance(voice, RequestError):
                then(voice)
            else:
                self._add_later(name, voice, seconds, then)

        self._do(self._looking, lambda: self._recorded(request, found), then)

    def _add_later(self, name: str, voice: Voice, seconds: float, then: ThenRecords) -> None:
        try:
            self._do(self._registry, lambda: self._add(name, voice, seconds, then), then)
        except Unavailable as error:
            then(_as_request_error(error))

    def _add(self, name: str, voice: Voice, seconds: float, then: ThenRecords) -> None:
        record = self._store.add(name, voice, seconds, self._origin)
        with self._lock:
            self._cache.put(("named", record.id), voice)
        _tell(then, [record])

    def _encode(self, audio: ReferenceAudio, text: str | None) -> Voice:
        samples = audio.resampled()
        voice = self._encoder.encode(frames(samples), log_mel(samples), len(samples), in_context=text is not None)
        return Voice(voice.x_vector, voice.codes, text, voice.state)

    def _fetch(self, key: Hashable, make: Callable[[], Voice], then: Then) -> None:
        """Tell `then` the voice of a key, which is made unless it is at hand or being made. Raises Unavailable."""
        with self._lock:
            voice = self._cache.get(key)
            if voice is None:
                if sum(map(len, self._flights.values())) >= self._max_waiting:
                    raise Unavailable(f"busy: {self._max_waiting} requests wait for the encoders")
                if key not in self._flights:
                    self._encoding.submit(lambda: self._make(key, make))
                self._flights.setdefault(key, []).append(then)
        if voice is not None:
            _tell(then, voice)

    def _make(self, key: Hashable, make: Callable[[], Voice]) -> None:
        made: Voice | RequestError
        try:
            made = make()
        except Exception as error:
            made = _as_request_error(error)
        with self._lock:
            if isinstance(made, Voice):
                self._cache.put(key, made)
            waiting = self._flights.pop(key, [])
        for then in waiting:
            _tell(then, made)


def _tell(then: Callable[[Answer], None], answer: Answer) -> None:
    """One caller who fails to take an answer keeps it from no other."""
    try:
        then(answer)
    except Exception:
        log.exception("the callback of a voice request failed")


def _as_request_error(error: Exception) -> RequestError:
    """Without its traceback: that would keep all that its frames held, requests to other models among it, in memory."""
    if isinstance(error, RequestError):
        error.__context__ = None
        return error.with_traceback(None)
    log.exception("a voice could not be made", exc_info=error)
    return RequestError(f"internal error: {error}")
