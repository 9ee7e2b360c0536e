"""Sound files: recordings of voices in, speech out."""

import io
import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client.errors import ClientError, reported

UNKNOWN_LENGTH = 0xFFFFFFFF
HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
RECORDINGS = "give a recording as WAV, FLAC, Ogg or MP3"


def read_recording(path: Path) -> tuple[NDArray[np.float32], int]:
    """Samples in -1..1, the mean of the channels, and the rate in Hz. Raises ClientError for an unreadable file."""
    # Imported here: only references require libsndfile.
    import soundfile

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
    """Writes 16-bit mono chunk by chunk; the header is valid after each chunk, and without lengths in a pipe.

    Raises ClientError when the file cannot be written.
    """

    def __init__(self, path: Path, sample_rate: int, kept_samples: int = 0) -> None:
        """Goes on after `kept_samples` of an earlier file, if there are any."""
        self._place = str(path)
        self._rate = sample_rate
        self._data_bytes = 2 * kept_samples
        with reported(self._place):
            self._file = path.open("r+b" if kept_samples else "wb", buffering=0)
            self._file.write(self._header(self._data_bytes if self._file.seekable() else UNKNOWN_LENGTH))
            if kept_samples:
                self._file.truncate(HEADER.size + self._data_bytes)
                self._file.seek(0, os.SEEK_END)

    def write(self, pcm: NDArray[np.int16]) -> None:
        data = pcm.astype("<i2").tobytes()
        with reported(self._place):
            _write_all(self._file, data)
            self._data_bytes += len(data)
            if self._file.seekable():
                self._file.seek(0)
                self._file.write(self._header(self._data_bytes))
                self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        with reported(self._place):
            self._file.close()

    def _header(self, data_bytes: int) -> bytes:
        riff_bytes = min(data_bytes + HEADER.size - 8, UNKNOWN_LENGTH)
        # Size, PCM, channels, Hz, bytes a second, bytes a frame, bits.
        layout = (16, 1, 1, self._rate, 2 * self._rate, 2, 16)
        return HEADER.pack(b"RIFF", riff_bytes, b"WAVE", b"fmt ", *layout, b"data", data_bytes)


def _write_all(file: io.FileIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]
