"""Validation and features of a reference recording (docs/model.md, Reference recording)."""

import hashlib
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from qwen3_tts_engine.audio import SAMPLE_RATE, SAMPLES_PER_FRAME
from qwen3_tts_engine.config import MAX_REFERENCE_RATE, MIN_REFERENCE_RATE
from qwen3_tts_engine.request import InvalidRequest

# The speaker encoder's reflection padding requires five mel frames; a codec frame has seven.
MIN_SECONDS = SAMPLES_PER_FRAME / SAMPLE_RATE
BEST_SECONDS = "3 to 10"
# Characters a second of a transcript, beyond any language's: fast English has 25, slow Chinese 2. Short recordings may
# be cut in the middle of a word, or be silent for the most part.
MOST_CHARACTERS, FEWEST_CHARACTERS, PAUSE_SECONDS = 40, 0.5, 3
EXACT_TEXT = "give exactly what is said in it, or set x_vector_only"
# Full scale is 1. Peaks far above it mean unscaled input; peaks below -60 dBFS, silence.
MAX_PEAK, MIN_PEAK = 2.0, 1e-3

NUM_MELS = 128
FFT_SIZE, HOP = 1024, 256
MEL_PADDING = (FFT_SIZE - HOP) // 2
MAGNITUDE_FLOOR, MEL_FLOOR = 1e-9, 1e-5
# Slaney's mel scale: linear up to 1 kHz in steps of 200/3 Hz, then logarithmic, 27 steps to a factor of 6.4.
LINEAR_STEP, LOG_START, LOG_STEP = 200 / 3, 1000.0, math.log(6.4) / 27


@dataclass(frozen=True, eq=False)
class ReferenceAudio:
    """A validated recording: float32 [samples], mono, at `sample_rate` Hz."""

    samples: np.ndarray
    sample_rate: int

    @classmethod
    def of(cls, samples: np.ndarray, sample_rate: int | None, max_seconds: float) -> "ReferenceAudio":
        """Raises InvalidRequest naming the field that is wrong."""
        if sample_rate is None or not MIN_REFERENCE_RATE <= sample_rate <= MAX_REFERENCE_RATE:
            allowed = f"the rate of ref_audio in Hz, {MIN_REFERENCE_RATE} to {MAX_REFERENCE_RATE}"
            raise InvalidRequest("ref_sample_rate", sample_rate, f"required: {allowed}")
        seconds = len(samples) / sample_rate
        found = f"{seconds:.3f} s at {sample_rate} Hz"
        if seconds < MIN_SECONDS:
            raise InvalidRequest("ref_audio", found, f"too short: record {BEST_SECONDS} s")
        if seconds > max_seconds:
            raise InvalidRequest(
                "ref_audio", found, f"too long: cut it to {max_seconds:g} s; {BEST_SECONDS} s work best"
            )
        if not np.isfinite(samples).all():
            raise InvalidRequest("ref_audio", float(samples[~np.isfinite(samples)][0]), "must be finite")
        peak = float(np.abs(samples).max())
        if not MIN_PEAK <= peak <= MAX_PEAK:
            problem = "silent" if peak < MIN_PEAK else "not scaled to -1..1"
            raise InvalidRequest("ref_audio", f"peak {peak:.3g}", f"{problem}: {MIN_PEAK:g} to {MAX_PEAK:g} is allowed")
        return cls(samples, sample_rate)

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    def check_transcript(self, text: str) -> None:
        """Raises InvalidRequest for a text that cannot be what is said: speech in its context may never end."""
        characters = len(text.strip())
        given = f"{characters} characters for {self.seconds:.1f} s of ref_audio"
        if characters > MOST_CHARACTERS * (1 + self.seconds):
            raise InvalidRequest("ref_text", given, f"too long: {EXACT_TEXT}")
        if self.seconds > PAUSE_SECONDS + characters / FEWEST_CHARACTERS:
            raise InvalidRequest("ref_text", given, f"too short: {EXACT_TEXT}")

    def digest(self) -> str:
        """SHA-256 of samples and rate."""
        digest = hashlib.sha256(f"{self.sample_rate} {len(self.samples)} ".encode())
        digest.update(np.ascontiguousarray(self.samples).data)
        return digest.hexdigest()

    def resampled(self) -> np.ndarray:
        """float32 [samples] at 24 kHz; same resampler and quality as the reference (soxr_hq, through librosa)."""
        if self.sample_rate == SAMPLE_RATE:
            return self.samples.astype(np.float32)
        # Imported here, since a 24 kHz reference needs no resampler.
        import soxr

        count = math.ceil(len(self.samples) * SAMPLE_RATE / self.sample_rate)
        resampled = soxr.resample(self.samples.astype(np.float32), self.sample_rate, SAMPLE_RATE, quality="soxr_hq")
        fitted: np.ndarray = np.zeros(count, np.float32)
        fitted[: len(resampled)] = resampled[:count]
        return fitted


def frames(samples: np.ndarray) -> np.ndarray:
    """24 kHz samples as codec frames, float32 [frames, 1920], the last one zero-padded."""
    count = -(-len(samples) // SAMPLES_PER_FRAME)
    padded = np.zeros(count * SAMPLES_PER_FRAME, np.float32)
    padded[: len(samples)] = samples
    return padded.reshape(count, SAMPLES_PER_FRAME)


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Log-mel of 24 kHz samples, float32 [frames of 256 samples, 128]."""
    padded = torch.from_numpy(np.pad(samples, MEL_PADDING, mode="reflect"))
    window = torch.hann_window(FFT_SIZE)
    spectrum = torch.stft(padded, FFT_SIZE, HOP, window=window, center=False, return_complex=True).T
    magnitude = (spectrum.real.square() + spectrum.imag.square() + MAGNITUDE_FLOOR).sqrt()
    mel = magnitude @ torch.from_numpy(mel_filters()).T
    features: np.ndarray = mel.clamp(min=MEL_FLOOR).log().numpy()
    return features


@cache
def mel_filters() -> np.ndarray:
    """Triangular filters of equal area from 0 to 12 kHz, float32 [128, 513]."""
    edges = _mel_to_hz(np.linspace(0, _hz_to_mel(SAMPLE_RATE / 2), NUM_MELS + 2))
    bins = np.linspace(0, SAMPLE_RATE / 2, FFT_SIZE // 2 + 1)
    widths = np.diff(edges)[:, None]
    slopes = edges[:, None] - bins
    triangles: np.ndarray = np.maximum(0, np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]))
    heights: np.ndarray = 2 / (edges[2:] - edges[:-2])
    filters: np.ndarray = (triangles * heights[:, None]).astype(np.float32)
    return filters


def _hz_to_mel(hz: float) -> float:
    return LOG_START / LINEAR_STEP + math.log(hz / LOG_START) / LOG_STEP


def _mel_to_hz(mels: np.ndarray) -> np.ndarray:
    bend = LOG_START / LINEAR_STEP
    hz: np.ndarray = np.where(mels < bend, mels * LINEAR_STEP, LOG_START * np.exp(LOG_STEP * (mels - bend)))
    return hz
