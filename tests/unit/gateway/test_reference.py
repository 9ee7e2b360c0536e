"""Recordings of voices, from base64 or files."""

import asyncio
import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile

from qwen3_tts_gateway.audio.encoder import make_encoder
from qwen3_tts_gateway.audio.reference import MAX_SECONDS, Reference, decode_file, decode_reference
from qwen3_tts_gateway.errors import APIError

RATE = 16_000
TONE = (8000 * np.sin(np.arange(RATE) * 0.1)).astype(np.int16)
# A playlist that would have libavformat open a file of the machine.
PLAYLISTS = (
    b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/hostname\n#EXT-X-ENDLIST\n",
    b"ffconcat version 1.0\nfile /etc/hostname\n",
)


def decode(content: bytes) -> Reference:
    with ThreadPoolExecutor(1) as pool:
        return asyncio.run(decode_file(content, "audio_sample", pool))


def recording(name: str, seconds: int = 1, rate: int = RATE) -> bytes:
    encoder = make_encoder(name, rate)
    return encoder.encode(np.tile(TONE, seconds)) + encoder.finish()


@pytest.mark.parametrize("name", ["wav", "mp3", "opus", "aac", "flac"])
def test_common_formats_are_decoded(name: str) -> None:
    samples, rate = decode(recording(name))
    # Opus is always decoded at 48 kHz.
    assert rate == (48_000 if name == "opus" else RATE)
    assert len(samples) / rate == pytest.approx(1, abs=0.15)
    assert samples.dtype == np.float32
    assert np.abs(samples).max() == pytest.approx(8000 / 32768, abs=0.05)


# Its length requires padding.
CONTENT = recording("wav")
BASE64 = base64.b64encode(CONTENT).decode()
assert BASE64.endswith("=")


@pytest.mark.parametrize(
    "text",
    [
        BASE64,
        f"data:audio/wav;base64,{BASE64}",
        f"DATA:audio/wav;codecs=1;BASE64,{BASE64}",
        base64.encodebytes(CONTENT).decode(),
        base64.encodebytes(CONTENT).decode().replace("\n", "\r\n"),
        BASE64.rstrip("="),
        base64.urlsafe_b64encode(CONTENT).decode(),
        base64.urlsafe_b64encode(CONTENT).decode().rstrip("="),
    ],
    ids=["plain", "data URL", "capitals", "lines", "CRLF", "no padding", "URL-safe", "URL-safe, no padding"],
)
def test_base64_as_clients_write_it(text: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        samples, rate = asyncio.run(decode_reference(text, pool))
    np.testing.assert_allclose(samples, TONE / 32768, atol=1e-4)
    assert rate == RATE


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_channels_are_averaged(channels: int) -> None:
    """Equal channels sound as one does: not 1.41 times louder in stereo, 5.1 as well."""
    file = io.BytesIO()
    soundfile.write(file, np.tile(TONE[:, np.newaxis], channels), RATE, format="WAV")
    samples, _ = decode(file.getvalue())
    np.testing.assert_allclose(samples, TONE / 32768, atol=1e-4)


def test_one_silent_channel_halves_the_other() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.stack([TONE, 0 * TONE], axis=1), RATE, format="WAV")
    samples, _ = decode(file.getvalue())
    np.testing.assert_allclose(samples, TONE / 65536, atol=1e-4)


@pytest.mark.parametrize("text", ["data:audio/wav;base64,", "AAAAA", "A*AA", "data:audio/wav,AAAA", "a,b"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(APIError, match="ref_audio: "):
        asyncio.run(decode_reference(text, pool))


@pytest.mark.parametrize("content", [*PLAYLISTS, b"", b"no recording", recording("wav")[:44]])
def test_what_is_no_recording_is_refused(content: bytes) -> None:
    with pytest.raises(APIError, match="audio_sample: not a recording that can be decoded"):
        decode(content)


def test_a_long_recording_is_refused() -> None:
    with pytest.raises(APIError, match=f"longer than {MAX_SECONDS} s"):
        decode(recording("wav", MAX_SECONDS + 1))
