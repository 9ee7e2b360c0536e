"""Sound files: recordings of voices in, speech out."""

import io
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client.errors import ClientError

RECORDINGS = "give a recording as WAV, FLAC, Ogg or MP3"


def read_recording(path: Path) -> tuple[NDArray[np.float32], int]:
    """Samples in -1..1, the mean of the channels, and the rate in Hz. Raises ClientError for an unreadable file."""
    # Imported here: only references require libsndfile.
    import soundfile  # type: ignore[import-untyped]

    try:
        content = path.read_bytes()
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    except OSError as error:
        raise ClientError(f"{path}: {error.strerror}") from None
    except soundfile.LibsndfileError as error:
        reason = error.error_string.rstrip(".") if content else "the file is empty"
        raise ClientError(f"{path}: {reason}: {RECORDINGS}") from None
    if not len(samples):
        raise ClientError(f"{path}: no samples, as its header says: {RECORDINGS}")
    return samples.mean(axis=1), rate


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
