import io
import os
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.wav import WavWriter, read_recording

RATE = 16_000
PCM = np.array([-(2**15), 0, 2**14], "<i2").tobytes()
MONO = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
STEREO = struct.pack("<HHIIHH", 1, 2, RATE, 4 * RATE, 4, 16)
# WAVE_FORMAT_EXTENSIBLE of PCM, whose kind is in a GUID.
PCM_GUID = bytes.fromhex("0100000000001000800000aa00389b71")
EXTENSIBLE = struct.pack("<HHIIHHHHI", 0xFFFE, 1, RATE, 2 * RATE, 2, 16, 22, 16, 4) + PCM_GUID
UNKNOWN = 0xFFFFFFFF
LIST = b"INFOIART\3\0\0\0abc"  # odd


def chunk(name: bytes, data: bytes, size: int | None = None, is_padded: bool = True) -> bytes:
    padding = b"\0" if is_padded and len(data) % 2 else b""
    return name + struct.pack("<I", len(data) if size is None else size) + data + padding


def riff(*chunks: bytes, size: int | None = None) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body) if size is None else size) + body


def encoded(name: str, subtype: str | None = None, channels: int = 1) -> bytes:
    file = io.BytesIO()
    samples = np.array([[-1.0], [0.0], [0.5]]).repeat(channels, axis=1)
    soundfile.write(file, samples, RATE, format=name, subtype=subtype)
    return file.getvalue()


def read(folder: Path, content: bytes) -> tuple[np.ndarray, int]:
    path = folder / "a.wav"
    path.write_bytes(content)
    return read_recording(path)


WRITTEN = {
    **{subtype: encoded("WAV", subtype) for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")},
    **{name: encoded(name) for name in ("WAVEX", "RF64", "W64", "FLAC", "AIFF")},
    **{f"{channels} channels": encoded("WAV", channels=channels) for channels in (2, 6)},
    "extensible": riff(chunk(b"fmt ", EXTENSIBLE), chunk(b"data", PCM)),
    "no size": riff(chunk(b"fmt ", MONO), chunk(b"data", PCM), size=0),
    "unknown sizes": riff(chunk(b"fmt ", MONO), chunk(b"data", PCM, size=UNKNOWN), size=UNKNOWN),
    "half a frame": riff(chunk(b"fmt ", MONO), chunk(b"data", PCM + b"\1")),
    "half a frame, not padded": riff(chunk(b"fmt ", MONO), chunk(b"data", PCM + b"\1", is_padded=False)),
    "list": riff(chunk(b"fmt ", MONO), chunk(b"LIST", LIST), chunk(b"data", PCM)),
    "list, not padded": riff(chunk(b"fmt ", MONO), chunk(b"data", PCM), chunk(b"LIST", LIST, is_padded=False)),
    "junk": riff(chunk(b"JUNK", bytes(28)), chunk(b"fmt ", MONO), chunk(b"data", PCM)),
    "cut short": riff(chunk(b"fmt ", MONO), chunk(b"data", PCM, size=2 * len(PCM))),
}


# The names are the tests' ids: a file of floats holds the second in which it was written.
@pytest.mark.parametrize("content", WRITTEN.values(), ids=WRITTEN.keys())
def test_reads_what_programs_write(tmp_path: Path, content: bytes) -> None:
    samples, rate = read(tmp_path, content)
    assert samples == pytest.approx([-1.0, 0.0, 0.5], abs=1e-4)
    assert (samples.dtype, rate) == (np.float32, RATE)


@pytest.mark.parametrize("name", ["MP3", "OGG"])
def test_reads_lossy_formats(tmp_path: Path, name: str) -> None:
    tone = 0.5 * np.sin(np.arange(RATE) * 0.1)
    file = io.BytesIO()
    soundfile.write(file, tone, RATE, format=name)
    samples, rate = read(tmp_path, file.getvalue())
    assert rate == RATE
    assert len(samples) / rate == pytest.approx(1, abs=0.15)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.05)


def test_averages_channels(tmp_path: Path) -> None:
    stereo = np.array([[2**14, 0], [-(2**15), 2**14]], "<i2").tobytes()
    samples, _ = read(tmp_path, riff(chunk(b"fmt ", STEREO), chunk(b"data", stereo)))
    assert samples.tolist() == [0.25, -0.25]


@pytest.mark.parametrize("rest", [b"\1", b"\1\2", b"\1\2\3"])
def test_half_a_frame_at_the_end_is_dropped(tmp_path: Path, rest: bytes) -> None:
    samples, _ = read(tmp_path, riff(chunk(b"fmt ", STEREO), chunk(b"data", PCM[:4] + rest)))
    assert samples.tolist() == [-0.5]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"RIFF", "Format not recognised"),
        (b"ID3 not a wav file at all", "Format not recognised"),
        (riff(chunk(b"fmt ", MONO)), "Error in WAV file. No 'data' chunk marker"),
        (riff(chunk(b"fmt ", MONO), chunk(b"LIST", LIST, is_padded=False), chunk(b"data", PCM)), "No 'data' chunk"),
        (riff(chunk(b"fmt ", MONO), chunk(b"data", PCM, size=0)), "no samples, as its header says"),
        (riff(chunk(b"fmt ", MONO), chunk(b"data", b"")), "no samples, as its header says"),
    ],
)
def test_other_files_are_refused_with_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ClientError, match=rf"a\.wav: .*{reason}.*: give a recording as WAV, FLAC, Ogg or MP3$"):
        read(tmp_path, content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"none\.wav: No such file or directory$"):
        read_recording(tmp_path / "none.wav")


def test_reads_what_was_written(tmp_path: Path) -> None:
    writer = WavWriter(tmp_path / "a.wav", 24_000)
    writer.write(np.array([1, -2], np.int16))
    writer.write(np.array([3], np.int16))
    writer.close()
    samples, rate = read_recording(tmp_path / "a.wav")
    assert ((samples * 2**15).tolist(), rate) == ([1, -2, 3], 24_000)


def test_the_header_is_valid_after_each_chunk(tmp_path: Path) -> None:
    writer = WavWriter(tmp_path / "a.wav", 24_000)
    for count in (1, 2):
        writer.write(np.array([1, -2], np.int16))
        with wave.open(str(tmp_path / "a.wav")) as file:
            assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
            assert file.getnframes() == 2 * count
    writer.close()


def test_a_pipe_gets_a_header_without_lengths() -> None:
    reading, writing = os.pipe()
    writer = WavWriter(Path(f"/dev/fd/{writing}"), 24_000)
    os.close(writing)
    writer.write(np.array([1, -2], np.int16))
    writer.close()
    with open(reading, "rb") as pipe:
        samples, rate = soundfile.read(io.BytesIO(pipe.read()), dtype="int16")
    assert (samples.tolist(), rate) == ([1, -2], 24_000)
