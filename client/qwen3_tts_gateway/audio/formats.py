"""Formats of the response: container, codec and sample rates."""

from dataclasses import dataclass, field

NATIVE_RATE = 24_000  # Hz, of the model
_ANY_RATE = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


@dataclass(frozen=True)
class AudioFormat:
    media_type: str
    codec: str = ""  # of libavcodec; empty: 16-bit little-endian PCM
    container: str = ""  # of libavformat
    rates: tuple[int, ...] = _ANY_RATE  # Hz
    default_rate: int = NATIVE_RATE
    bit_rate: int | None = None
    sample_format: str = "s16"
    options: dict[str, str] = field(default_factory=dict)  # of the container
    effort: int | None = None  # compression_level of the codec


FORMATS = {
    # No Xing frame: the muxer would hold it back and fill it in at the end.
    "mp3": AudioFormat(
        "audio/mpeg",
        "libmp3lame",
        "mp3",
        bit_rate=64_000,
        sample_format="s16p",
        options={"write_xing": "0"},
        effort=7,  # 300 s of speech a second and core; the default 180
    ),
    # A page for each packet of 20 ms; by default libavformat collects a second.
    "opus": AudioFormat(
        "audio/ogg",
        "libopus",
        "ogg",
        rates=(8000, 12000, 16000, 24000, 48000),
        bit_rate=48_000,
        options={"page_duration": "20000"},
        effort=5,  # 500 s a second and core; the default 300
    ),
    "aac": AudioFormat("audio/aac", "aac", "adts", bit_rate=64_000, sample_format="fltp"),
    "flac": AudioFormat("audio/flac", "flac", "flac"),
    "wav": AudioFormat("audio/wav"),
    "pcm": AudioFormat("audio/pcm"),
    # G.711 for telephony, without a header.
    "mulaw": AudioFormat("audio/basic", "pcm_mulaw", "mulaw", default_rate=8000),
    "alaw": AudioFormat("audio/x-alaw", "pcm_alaw", "alaw", default_rate=8000),
}
