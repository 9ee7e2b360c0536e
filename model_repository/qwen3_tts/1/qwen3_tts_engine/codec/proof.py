"""Compares code2wav's output with the exporter's golden cases, by calls like those of streams."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from qwen3_tts_engine.codec.calls import ProofCall, Utterances, plan_calls
from qwen3_tts_engine.codec.contract import MAX_BATCH, MODEL_NAME
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.interfaces import CodecClient
from qwen3_tts_engine.request import RequestError, Unavailable

log = logging.getLogger(__name__)

# Mean square error of int16 rounding: originals that differ by less than half of the last bit.
ROUNDING = 0.25
MAX_SHAPES_LISTED, MAX_ERROR_LENGTH = 10, 48


class CodecProofError(RequestError):
    """The codec must not serve; the message gives the reason and a remedy."""


@dataclass
class Findings:
    """The worst SNR of each shape, and the errors of shapes without audio."""

    snr_db: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, shape: str, snr_db: float, error: object = None) -> None:
        self.snr_db[shape] = min(snr_db, self.snr_db.get(shape, math.inf))
        if error is not None:
            self.errors[shape] = _shorten(str(error).removeprefix(f"{MODEL_NAME}: "))

    @property
    def worst(self) -> float:
        return min(self.snr_db.values())

    def check(self, limit: float) -> None:
        """Raises CodecProofError when a shape is below the limit."""
        wrong = sorted((snr, shape) for shape, snr in self.snr_db.items() if not snr >= limit)
        if not wrong:
            return
        listed = [f"{shape}: {self.errors.get(shape) or f'{snr:.1f} dB'}" for snr, shape in wrong[:MAX_SHAPES_LISTED]]
        if len(wrong) > len(listed):
            listed.append(f"{len(wrong) - len(listed)} more")
        raise CodecProofError(
            f"{MODEL_NAME} differs from its golden cases at {len(wrong)} of {len(self.snr_db)} shapes (rows x frames: "
            f"SNR): {', '.join(listed)}; at least {limit:.1f} dB is required. Export the codec again on this machine "
            "(python -m export --force), or in another --form"
        )


class CodecProof:
    """Calls the codec through the talker's client, in the talker's slots; no stream may hold any."""

    def __init__(self, codec: CodecClient, golden: Golden, clock: Callable[[], float] = time.perf_counter) -> None:
        self._codec, self._golden, self._clock = codec, golden, clock
        self.findings = Findings()
        # Seconds per frame, and the size, of the largest call so far.
        self._frame_seconds, self._largest = 0.0, 0

    def run(self, lengths: list[int], num_slots: int, seconds: float, closed: threading.Event) -> None:
        """Raises CodecProofError, after all calls that fit into `seconds`; every chunk length is called in any case."""
        num_slots = min(num_slots, MAX_BATCH)
        calls, utterances = plan_calls(lengths, num_slots), Utterances(self._golden, num_slots)
        made, started = 0, self._clock()
        for index, call in enumerate(calls):
            if closed.is_set():
                raise Unavailable("the server is shutting down")
            if index < len(lengths) or self._clock() - started + self._frame_seconds * call.size <= seconds:
                self.make(call, utterances)
                made += 1
        self.findings.check(self._golden.snr_db)
        shapes, worst = len(self.findings.snr_db), self.findings.worst
        log.info(
            "%s agrees with its golden cases: %d of %d calls, %d shapes, worst SNR %.1f dB (%.1f required), %.2f s",
            MODEL_NAME, made, len(calls), shapes, worst, self._golden.snr_db, self._clock() - started,
        )  # fmt: skip

    def make(self, call: ProofCall, utterances: Utterances) -> None:
        """Adds the shape's outcome to `findings`."""
        slots = utterances.choose(call)
        started = self._clock()
        try:
            pcm, failed = self._codec.decode(utterances.chunks(slots, call.frames))
        except Exception as error:
            self.findings.add(str(call), -math.inf, error)
            utterances.restart(slots)
            return
        if call.size >= self._largest:
            self._frame_seconds, self._largest = (self._clock() - started) / call.size, call.size
        snr_db = self._compare(slots, call, pcm, utterances)
        snr_db[list(failed)] = -math.inf
        self.findings.add(str(call), float(snr_db.min()), next(iter(failed.values()), None))
        utterances.advance(slots, call.frames)
        # Restart failed rows, so that later shapes do not inherit their errors.
        utterances.restart(slots[~(snr_db >= self._golden.snr_db)])

    def _compare(self, slots: np.ndarray, call: ProofCall, pcm: np.ndarray, utterances: Utterances) -> np.ndarray:
        """The SNR of each row against its golden samples, and against its twin, dB."""
        expected = utterances.expected(slots, call.frames)
        if pcm.shape != expected.shape:
            return np.full(call.rows, -math.inf)
        loudness = np.maximum(mean_square(expected), utterances.loudness(slots))
        errors = (mean_square(pcm - other.astype(np.float64)) for other in (expected, pcm[utterances.twins(slots)]))
        return snr_db(loudness, np.maximum(*errors))


def snr_db(loudness: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Takes mean squares of int16 samples; an error within rounding counts as none."""
    beyond = np.maximum(error - ROUNDING, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        snr: np.ndarray = np.where(beyond > 0, 10 * np.log10(loudness / beyond), math.inf)
    return snr


def mean_square(samples: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.square(samples, dtype=np.float64).mean(axis=1)
    return result


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_ERROR_LENGTH else f"{text[: MAX_ERROR_LENGTH - 1]}…"
