"""Recordings of a voice to clone, in any format that libavformat reads."""

import asyncio
import base64
import binascii
import io
from concurrent.futures import Executor

import av
import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client.gateway.errors import APIError

Reference = tuple[NDArray[np.float32], int]  # mono samples in -1..1, Hz
MAX_SECONDS = 120


async def decode_reference(locator: str, executor: Executor) -> Reference:
    """Decodes base64, with or without the head of a data URL. Raises APIError that names ref_audio."""
    head, comma, data = locator.partition(",")
    if comma and not (head.startswith("data:") and head.endswith(";base64")):
        raise _refused("ref_audio", "expected base64 or a data URL in base64")
    if not comma and "://" in locator[:16]:
        raise _refused("ref_audio", "expected base64 or a data URL; URLs are not fetched")
    try:
        content = base64.b64decode(data if comma else locator, validate=True)
    except (binascii.Error, ValueError):
        raise _refused("ref_audio", "not base64") from None
    return await decode_file(content, "ref_audio", executor)


async def decode_file(content: bytes, field: str, executor: Executor) -> Reference:
    """Raises APIError that names `field`."""
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, _decode, content)
    except (av.FFmpegError, ValueError, IndexError) as error:
        raise _refused(field, f"not a recording that can be decoded: {getattr(error, 'strerror', error)}") from None


def _decode(content: bytes) -> Reference:
    parts: list[NDArray[np.float32]] = []
    samples = 0
    with av.open(io.BytesIO(content), "r") as container:
        stream = container.streams.audio[0]
        rate = stream.rate
        mono = av.AudioResampler(format="fltp", layout="mono", rate=rate)
        for frame in container.decode(stream):
            parts += [part.to_ndarray()[0] for part in mono.resample(frame)]
            samples += frame.samples
            if samples > MAX_SECONDS * rate:
                raise ValueError(f"longer than {MAX_SECONDS} s")
    if not parts:
        raise ValueError("no samples")
    return np.concatenate(parts), rate


def _refused(field: str, reason: str) -> APIError:
    return APIError(400, f"{field}: {reason}", field, "invalid_value")
