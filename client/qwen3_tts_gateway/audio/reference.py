"""Recordings of a voice to clone, in any format that libavformat reads."""

import asyncio
import base64
import io
from collections.abc import Callable
from concurrent.futures import Executor

import av
import numpy as np
from numpy.typing import NDArray

from qwen3_tts_gateway.errors import APIError

Reference = tuple[NDArray[np.float32], int]  # mono samples in -1..1, Hz
MAX_SECONDS = 120
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
# Playlists are not among them: they would make libavformat open other files and addresses.
CONTAINERS = "aac,aiff,caf,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,ogg,w64,wav"


async def decode_reference(locator: str, executor: Executor) -> Reference:
    """Decodes base64, with or without the head of a data URL. Raises APIError that names ref_audio."""
    head, comma, data = locator.strip().partition(",")
    if comma and not (head[:5].lower() == "data:" and head.lower().endswith(";base64")):
        raise _refused("ref_audio", "expected base64 or a data URL in base64")
    if not comma and "://" in locator[:16]:
        raise _refused("ref_audio", "expected base64 or a data URL; URLs are not fetched")
    return await _decoded(lambda: _decode(_bytes(data if comma else head)), "ref_audio", executor)


async def decode_file(content: bytes, field: str, executor: Executor) -> Reference:
    """Raises APIError that names `field`."""
    return await _decoded(lambda: _decode(content), field, executor)


async def _decoded(decode: Callable[[], Reference], field: str, executor: Executor) -> Reference:
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, decode)
    except (av.FFmpegError, ValueError, IndexError) as error:
        reason = "no audio" if isinstance(error, IndexError) else getattr(error, "strerror", None) or error
        raise _refused(field, f"not a recording that can be decoded: {reason}") from None


def _bytes(text: str) -> bytes:
    """Decodes base64 in either alphabet, with or without line breaks and padding. Raises ValueError."""
    digits = "".join(text.split()).rstrip("=").translate(_STANDARD_ALPHABET)
    return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)


def _decode(content: bytes) -> Reference:
    parts: list[NDArray[np.float32]] = []
    samples = 0
    with av.open(io.BytesIO(content), "r", options={"format_whitelist": CONTAINERS}) as container:
        stream = container.streams.audio[0]
        rate = stream.rate
        planar = av.AudioResampler(format="fltp", rate=rate)
        for frame in container.decode(stream):
            # Mixed down here: the resampler's own mono keeps the power of uncorrelated channels, which is louder.
            parts += [part.to_ndarray().mean(axis=0) for part in planar.resample(frame)]
            samples += frame.samples
            if samples > MAX_SECONDS * rate:
                raise ValueError(f"longer than {MAX_SECONDS} s")
    if not parts:
        raise ValueError("no samples")
    return np.concatenate(parts), rate


def _refused(field: str, reason: str) -> APIError:
    return APIError(400, f"{field}: {reason}", field, "invalid_value")
