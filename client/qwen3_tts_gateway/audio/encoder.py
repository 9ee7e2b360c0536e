"""Encoders of one utterance: PCM in, bytes of the response out, chunk by chunk."""

import struct
from typing import Protocol, cast

import av
import numpy as np
from av.audio.stream import AudioStream
from numpy.typing import NDArray

from qwen3_tts_gateway.audio.formats import FORMATS, AudioFormat

Pcm = NDArray[np.int16]
UNKNOWN_LENGTH = 0xFFFFFFFF
WAV_HEADER_BYTES = 44
_FORM_SIZE_AT = 4


class Encoder(Protocol):
    """Not thread-safe; calls may come from different threads, one after the other."""

    def encode(self, pcm: Pcm) -> bytes: ...

    def finish(self) -> bytes:
        """The rest of the stream, which may be empty. The encoder cannot be used afterwards."""


def make_encoder(format_name: str, rate: int) -> Encoder:
    audio_format = FORMATS[format_name]
    if audio_format.codec:
        return CodecEncoder(audio_format, rate)
    return PcmEncoder(wav_header(rate) if format_name == "wav" else b"")


def wav_header(rate: int) -> bytes:
    """Header of 16-bit mono WAV of unknown length."""
    form = struct.pack("<4sI4s", b"RIFF", UNKNOWN_LENGTH, b"WAVE")
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return form + fmt + struct.pack("<4sI", b"data", UNKNOWN_LENGTH)


def complete(format_name: str, encoded: bytes) -> bytes:
    """All bytes of an utterance, with true sizes in a WAV header."""
    if format_name != "wav":
        return encoded
    sized = bytearray(encoded)
    struct.pack_into("<I", sized, _FORM_SIZE_AT, len(encoded) - _FORM_SIZE_AT - 4)
    struct.pack_into("<I", sized, WAV_HEADER_BYTES - 4, len(encoded) - WAV_HEADER_BYTES)
    return bytes(sized)


class PcmEncoder:
    def __init__(self, header: bytes) -> None:
        self._header = header

    def encode(self, pcm: Pcm) -> bytes:
        return self.finish() + pcm.astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        header, self._header = self._header, b""
        return header


class CodecEncoder:
    """libavcodec into libavformat; bytes come out with the packet that completes them."""

    def __init__(self, audio_format: AudioFormat, rate: int) -> None:
        self._written = _Written()
        self._rate = rate
        self._samples = 0
        self._container = av.open(
            self._written, "w", format=audio_format.container, container_options=audio_format.options
        )
        stream = self._container.add_stream(
            audio_format.codec, rate=rate, layout="mono", format=audio_format.sample_format
        )
        self._stream = cast(AudioStream, stream)
        if audio_format.effort is not None:
            self._stream.codec_context.options = {"compression_level": str(audio_format.effort)}
        if audio_format.bit_rate:
            self._stream.codec_context.bit_rate = audio_format.bit_rate
        self._stream.codec_context.open()

    def encode(self, pcm: Pcm) -> bytes:
        frame = av.AudioFrame.from_ndarray(pcm[np.newaxis], format="s16", layout="mono")
        frame.sample_rate, frame.pts = self._rate, self._samples
        self._samples += len(pcm)
        self._container.mux(self._stream.encode(frame))
        return self._written.take()

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._written.take()


class _Written:
    """The file that libavformat writes to; it cannot seek."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        taken, self._bytes = bytes(self._bytes), bytearray()
        return taken
