"""Duration of encoded audio as it arrives, without decoding it."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client.protocol import SAMPLE_RATE

# Content types of the responses, by response_format.
CONTENT_TYPES = {
    "pcm": ("audio/pcm", "audio/L16", "application/octet-stream"),
    "mp3": ("audio/mpeg", "audio/mp3"),
    "opus": ("audio/ogg", "audio/opus"),
}
_OGG_RATE = 48_000  # Hz, of granule positions
_OGG_HEADER = 27  # bytes, before the table of segments
_MP3_FRAME = (192, 576)  # bytes and samples at 64 kbit/s and 24 kHz


class Meter(Protocol):
    def pcm(self, part: bytes) -> NDArray[np.int16]:
        """The samples at 24 kHz that a part of the body completes; of encoded audio only their number is right."""


def make_meter(response_format: str) -> Meter:
    meters: dict[str, Callable[[], Meter]] = {"pcm": PcmMeter, "mp3": Mp3Meter, "opus": OggMeter}
    return meters[response_format]()


class PcmMeter:
    def __init__(self) -> None:
        self._rest = b""

    def pcm(self, part: bytes) -> NDArray[np.int16]:
        data = self._rest + part
        whole = len(data) & ~1
        self._rest = data[whole:]
        return np.frombuffer(data[:whole], "<i2")


class Mp3Meter:
    """Constant bit rate."""

    def __init__(self) -> None:
        self._bytes = 0

    def pcm(self, part: bytes) -> NDArray[np.int16]:
        size, samples = _MP3_FRAME
        before = self._bytes // size
        self._bytes += len(part)
        return np.zeros((self._bytes // size - before) * samples, np.int16)


class OggMeter:
    """Each page ends with the position of its last sample."""

    def __init__(self) -> None:
        self._rest = b""
        self._samples = 0

    def pcm(self, part: bytes) -> NDArray[np.int16]:
        self._rest += part
        before = self._samples
        while size := self._page_bytes():
            granule = int.from_bytes(self._rest[6:14], "little", signed=True)
            self._samples = max(self._samples, granule * SAMPLE_RATE // _OGG_RATE)
            self._rest = self._rest[size:]
        return np.zeros(self._samples - before, np.int16)

    def _page_bytes(self) -> int:
        """Size of the first page, 0 until it is complete."""
        if len(self._rest) < _OGG_HEADER:
            return 0
        body = _OGG_HEADER + self._rest[26]
        size = body + sum(self._rest[_OGG_HEADER:body])
        return size if body <= len(self._rest) and size <= len(self._rest) else 0
