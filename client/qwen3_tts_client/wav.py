"""WAV files: reference audio in, speech out."""

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client.errors import ClientError


def read_wav(path: Path) -> tuple[NDArray[np.float32], int]:
    """Mono samples in -1..1, mixed down, and the rate in Hz of an 8- to 32-bit PCM file. Raises ClientError."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise ClientError(f"{path}: not a PCM WAV file: {error}") from None
    samples = _to_float(data, width).reshape(-1, channels).mean(axis=1)
    return samples.astype(np.float32), rate


def _to_float(data: bytes, width: int) -> NDArray[np.float64]:
    if width == 1:  # the only unsigned format
        return (np.frombuffer(data, np.uint8) - 128.0) / 128
    high_aligned = np.zeros((len(data) // width, 4), np.uint8)
    high_aligned[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return high_aligned.view("<i4")[:, 0] / 2.0**31


class WavWriter:
    """Writes 16-bit mono chunk by chunk; the header is valid after each chunk."""

    def __init__(self, path: Path, sample_rate: int) -> None:
        try:
            self._bytes = path.open("wb")
        except OSError as error:
            raise ClientError(f"{path}: {error.strerror}") from None
        self._file = wave.open(self._bytes, "wb")  # noqa: SIM115 - open until close()
        self._file.setnchannels(1)
        self._file.setsampwidth(2)
        self._file.setframerate(sample_rate)

    def write(self, pcm: NDArray[np.int16]) -> None:
        self._file.writeframes(pcm.astype("<i2").tobytes())

    def close(self) -> None:
        self._file.close()
        self._bytes.close()
