"""Decodes the formats of the gateway, and compares what they hold."""

import io
import struct
import wave

import av
import numpy as np
import soxr

from qwen3_tts_gateway.audio.formats import FORMATS


def decode(encoded: bytes, name: str, rate: int | None = None) -> tuple[np.ndarray, int]:
    """Mono samples and their rate."""
    rate = rate or FORMATS[name].default_rate
    if name == "pcm":
        return np.frombuffer(encoded, "<i2"), rate
    options = {"sample_rate": str(rate)} if name in ("mulaw", "alaw") else {}
    with av.open(io.BytesIO(encoded), "r", format=FORMATS[name].container or name, options=options) as container:
        decoded_rate = container.streams.audio[0].rate
        mono = av.AudioResampler(format="s16", layout="mono", rate=decoded_rate)
        parts = [part.to_ndarray()[0] for frame in container.decode(audio=0) for part in mono.resample(frame)]
    return np.concatenate(parts), decoded_rate


def frames_of_wav(encoded: bytes) -> int:
    """Frames by the header, whose sizes must be those of the file."""
    assert struct.unpack_from("<4sI", encoded) == (b"RIFF", len(encoded) - 8)
    with wave.open(io.BytesIO(encoded), "rb") as file:
        return file.getnframes()


def correlation(expected: np.ndarray, decoded: np.ndarray, rate: int, decoded_rate: int) -> float:
    """The largest correlation over all delays; a codec adds one of its own."""
    low = min(rate, 8000)
    a, b = (soxr.resample(x.astype(np.float64), r, low) for x, r in ((expected, rate), (decoded, decoded_rate)))
    size = 1 << (len(a) + len(b) - 1).bit_length()
    crossed = np.fft.irfft(np.fft.rfft(b, size) * np.conj(np.fft.rfft(a, size)), size)
    return float(crossed.max() / (np.linalg.norm(a) * np.linalg.norm(b)))
