"""Every format decodes to the speech that went in."""

import asyncio
import io

import av
import numpy as np
import pytest

from qwen3_tts_gateway.audio.encoder import make_encoder
from qwen3_tts_gateway.audio.filters import Resampler, Tempo
from qwen3_tts_gateway.audio.formats import FORMATS, NATIVE_RATE
from qwen3_tts_gateway.audio.pipeline import Encoders, Pipeline
from tests.unit.gateway.decoding import correlation, decode

FRAME = 1920
CHUNKS = (1, 1, 2, 4, 8, 3)  # frames
# Chunks until the first bytes of sound.
FIRST_BYTES = {"mp3": 1, "opus": 1, "aac": 2, "flac": 2, "wav": 1, "pcm": 1, "mulaw": 1, "alaw": 1}
LOSSLESS = ("pcm", "wav", "flac")


def voice(frames: int, rate: int = NATIVE_RATE) -> np.ndarray:
    """A vowel: harmonics of 140 Hz whose loudness changes."""
    time_s = np.arange(frames * FRAME * rate // NATIVE_RATE) / rate
    wave = sum(np.sin(2 * np.pi * 140 * n * time_s) / n for n in range(1, 12))
    samples: np.ndarray = 3000 * wave * (1 + 0.5 * np.sin(2 * np.pi * 3 * time_s))
    return samples.astype(np.int16)


def chunks(pcm: np.ndarray) -> list[np.ndarray]:
    return np.split(pcm, np.cumsum(CHUNKS[:-1]) * FRAME)


@pytest.mark.parametrize("name", FORMATS)
def test_decodes_to_the_samples(name: str) -> None:
    rate = FORMATS[name].default_rate
    pcm = voice(sum(CHUNKS), rate)
    encoder = make_encoder(name, rate)
    encoded = b"".join([*map(encoder.encode, np.split(pcm, 5)), encoder.finish()])
    decoded, decoded_rate = decode(encoded, name)
    if name in LOSSLESS:
        np.testing.assert_array_equal(decoded, pcm)
    assert correlation(pcm, decoded, rate, decoded_rate) > 0.98
    assert abs(len(decoded) / decoded_rate - len(pcm) / rate) < 0.12


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_do_not_depend_on_the_chunks(name: str) -> None:
    pcm = voice(sum(CHUNKS))
    whole, parts = (make_encoder(name, NATIVE_RATE) for _ in range(2))
    encoded = b"".join([*map(parts.encode, chunks(pcm)), parts.finish()])
    expected = whole.encode(pcm) + whole.finish()
    if name == "opus":  # each Ogg stream has a random serial number
        (a, _), (b, _) = decode(encoded, name), decode(expected, name)
        np.testing.assert_array_equal(a, b)
    else:
        assert encoded == expected


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_come_with_an_early_chunk(name: str) -> None:
    encoder = make_encoder(name, FORMATS[name].default_rate)
    sizes = [len(encoder.encode(chunk)) for chunk in np.split(voice(8), 8)]
    assert [size > 0 for size in sizes].index(True) + 1 <= FIRST_BYTES[name]
    encoder.finish()


def test_wav_header_is_of_unknown_length() -> None:
    encoder = make_encoder("wav", 16_000)
    data = encoder.encode(voice(1)) + encoder.finish()
    assert (data[:4], data[4:8], data[40:44]) == (b"RIFF", b"\xff" * 4, b"\xff" * 4)
    assert int.from_bytes(data[24:28], "little") == 16_000


def test_wav_without_audio_has_a_header() -> None:
    assert len(make_encoder("wav", NATIVE_RATE).finish()) == 44


@pytest.mark.parametrize(("name", "rate"), [(n, r) for n, f in FORMATS.items() for r in f.rates])
def test_every_rate_of_every_format(name: str, rate: int) -> None:
    encoded = run(Pipeline(name, rate, None, Encoders(1)), voice(6))
    decoded, decoded_rate = decode(encoded, name, rate)
    assert abs(len(decoded) / decoded_rate - 6 * 0.08) < 0.2


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.25, 2.0, 4.0])
def test_speed_changes_the_duration_and_not_the_pitch(speed: float) -> None:
    stretched = np.concatenate([Tempo(speed).process(voice(40), last=True)])
    assert len(stretched) / (40 * FRAME) == pytest.approx(1 / speed, rel=0.05)
    assert pitch_hz(stretched) == pytest.approx(140, abs=6)


def test_chunked_tempo_equals_whole_tempo() -> None:
    pcm = voice(sum(CHUNKS))
    tempo = Tempo(1.5)
    parts = [tempo.process(chunk) for chunk in chunks(pcm)]
    parts.append(tempo.process(np.empty(0, np.int16), last=True))
    np.testing.assert_array_equal(np.concatenate(parts), Tempo(1.5).process(pcm, last=True))


def test_chunked_resampling_equals_whole_resampling() -> None:
    pcm = voice(sum(CHUNKS))
    resampler = Resampler(8000)
    parts = [resampler.process(chunk) for chunk in chunks(pcm)]
    parts.append(resampler.process(np.empty(0, np.int16), last=True))
    whole = Resampler(8000).process(pcm, last=True)
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=2)
    assert len(whole) == len(pcm) // 3


def run(pipeline: Pipeline, pcm: np.ndarray) -> bytes:
    async def encode() -> bytes:
        parts = [part for chunk in np.split(pcm, 3) async for part in pipeline.encode(chunk)]
        return b"".join([*parts, pipeline.finish()])

    return asyncio.run(encode())


def pitch_hz(pcm: np.ndarray) -> float:
    middle = pcm[len(pcm) // 2 :][:8192].astype(float)
    correlated = np.correlate(middle, middle, "full")[len(middle) :]
    lags = np.arange(NATIVE_RATE // 400, NATIVE_RATE // 70)
    return float(NATIVE_RATE / lags[np.argmax(correlated[lags - 1])])


def test_a_decoder_reads_a_stream_that_is_cut() -> None:
    encoder = make_encoder("mp3", NATIVE_RATE)
    data = b"".join(map(encoder.encode, np.split(voice(20), 20)))
    with av.open(io.BytesIO(data), "r", format="mp3") as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) > 10 * FRAME
