import wave
from pathlib import Path

import numpy as np
import pytest

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.wav import WavWriter, read_wav


def write(path: Path, data: bytes, width: int, channels: int = 1, rate: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (1, bytes([0, 128, 192])),
        (2, np.array([-(2**15), 0, 2**14], "<i2").tobytes()),
        (3, b"\x00\x00\x80" + b"\x00\x00\x00" + b"\x00\x00\x40"),
        (4, np.array([-(2**31), 0, 2**30], "<i4").tobytes()),
    ],
)
def test_scales_every_sample_width_to_minus_one_to_one(tmp_path: Path, width: int, data: bytes) -> None:
    samples, rate = read_wav(write(tmp_path / "a.wav", data, width))
    assert (samples.tolist(), rate) == ([-1.0, 0.0, 0.5], 16_000)
    assert samples.dtype == np.float32


def test_averages_channels(tmp_path: Path) -> None:
    stereo = np.array([[2**14, 0], [-(2**15), 2**14]], "<i2")
    samples, _ = read_wav(write(tmp_path / "a.wav", stereo.tobytes(), 2, channels=2))
    assert samples.tolist() == [0.25, -0.25]


@pytest.mark.parametrize("content", [b"", b"RIFF", b"ID3 not a wav file at all"])
def test_rejects_a_file_that_is_not_wav(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(ClientError, match=r"a\.wav: not a PCM WAV file"):
        read_wav(tmp_path / "a.wav")


def test_reads_what_was_written(tmp_path: Path) -> None:
    writer = WavWriter(tmp_path / "a.wav", 24_000)
    writer.write(np.array([1, -2], np.int16))
    writer.write(np.array([3], np.int16))
    writer.close()
    samples, rate = read_wav(tmp_path / "a.wav")
    assert ((samples * 2**15).tolist(), rate) == ([1, -2, 3], 24_000)
