"""The contract of the code2wav model: tensor names, limits, PCM format, and the layout of a stream's state.

Exporter, codec client and tests import it; the Triton configurations are tested against it; `terms` reaches the package
code2wav_step through the exported file.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qwen3_tts_engine.audio import NUM_CODEBOOKS
from qwen3_tts_engine.checkpoint.configs import CONV_KERNEL, PRE_CONV_KERNEL, RESIDUAL_DILATIONS, CodecDecoderConfig

MODEL_NAME = "code2wav"
CODES, PLACES, PCM = "codes", "places", "pcm"

# States are rows where the codec runs. `places` int32 [PLACES_SIZE] are the row that is read, the row that is written,
# the frames of the first one's window that are valid, and the key of the rows' owner. Whoever writes a row that has no
# owner owns it. The same row twice without history is a claim: nothing is written.
PLACES_SIZE = 4
ZERO_ROW = 0
"""Starts a stream; never written."""
NUM_ROWS = 2048
# The last ones, which nobody can own: for callers without a key (0), who have no others.
PUBLIC_ROWS = 64
# Rows of a talker for voices: other talkers of the server need rows too.
MOST_VOICES = 256
# A plan's rows take at most this part of the memory that the server may take (export/plugin/rows.h).
PLAN_ROWS_PART = 32
# int16 samples of full scale, and marks, which no sample equals: the first one of a row that overflowed and has no
# audio, and the first two of a row that the caller's key does not open.
PCM_SCALE, NO_SAMPLE = 32767, -32768
# The request parameter that opens a direct line, and names of files in memory, whose purpose is checked by whoever
# opens them by a path.
LINE, LINE_MEMORY, NOTE_MEMORY = "line", "qwen3_tts_line", "qwen3_tts_note"

# Largest chunk of the model.
MAX_FRAMES = 32
# Chunk lengths that the talker uses. The exporter verifies these, and a TensorRT plan accepts no others.
CHUNK_FRAMES = (1, 2, 4, 8, 16)
MAX_BATCH = 64
# Frames of all chunks of a call: bounds a call to ten milliseconds, which an urgent stream may have to wait.
MAX_CALL_FRAMES = 512


def terms() -> dict[str, str | int]:
    """The part of the contract that the package code2wav_step reads from the metadata of the exported file."""
    return {
        "codes": CODES,
        "places": PLACES,
        "pcm": PCM,
        "num_rows": NUM_ROWS,
        "public_rows": PUBLIC_ROWS,
        "line": LINE,
        "line_memory": LINE_MEMORY,
        "note_memory": NOTE_MEMORY,
        "max_frames": MAX_FRAMES,
        "max_batch": MAX_BATCH,
        "pcm_scale": PCM_SCALE,
        "no_sample": NO_SAMPLE,
    }


@dataclass(frozen=True)
class RowCounts:
    """How many rows a talker owns: one for each slot, and for voices."""

    slots: int
    voices: int

    @classmethod
    def of(cls, slots: int, voice_bytes: int, state_bytes: int, rows: int | None = None) -> "RowCounts":
        """Counts for `slots`. `rows` are those that code2wav has, public ones included, if they are limited;
        `voice_bytes` are what voices may take, 0 without voices. There is a row for each voice that a call reads, and
        one for a voice that is encoded meanwhile."""
        if not voice_bytes:
            return cls(slots, 0)
        least, most = min(slots, MAX_BATCH) + 1, min(MOST_VOICES, voice_bytes // state_bytes)
        if rows is not None:
            most = min(most, rows - PUBLIC_ROWS - 1 - slots)
        return cls(slots, max(least, most))

    @property
    def total(self) -> int:
        return self.slots + self.voices

    def fits(self, rows: int) -> bool:
        """Whether code2wav has enough, of `rows` with the zero row and the public ones."""
        return self.total <= rows - PUBLIC_ROWS - 1


def plan_rows(memory: int, state_bytes: int) -> int:
    """Rows that a TensorRT plan allocates, public ones included, when the server may take `memory` bytes of a GPU."""
    return min(NUM_ROWS, memory // PLAN_ROWS_PART // state_bytes)


@dataclass(frozen=True)
class StatePiece:
    """A named part of the state vector, stored flat in this shape; convolution histories are [channels, samples]."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def call_shapes(rows: int, frames: int) -> dict[str, list[int]]:
    """Input shapes of a batch of `rows` streams with `frames` new frames each."""
    return {CODES: [rows, frames, NUM_CODEBOOKS], PLACES: [rows, PLACES_SIZE]}


def served_shapes(chunk_frames: Sequence[int]) -> list[dict[str, list[int]]]:
    """call_shapes of the smallest and the largest batch of each chunk length."""
    return [call_shapes(rows, frames) for frames in chunk_frames for rows in (1, MAX_BATCH)]


def split_frames(frames: int, longest: int = CHUNK_FRAMES[-1]) -> Iterator[tuple[int, int]]:
    """Splits `frames` into the longest possible chunks: (start, stop)."""
    start = 0
    while start < frames:
        length = max(length for length in CHUNK_FRAMES if length <= min(longest, frames - start))
        yield start, start + length
        start += length


def max_history(config: CodecDecoderConfig) -> int:
    """Past frames in the transformer's window: the maximum of the `history` input."""
    return config.sliding_window - 1


def state_layout(config: CodecDecoderConfig) -> tuple[StatePiece, ...]:
    """The pieces of one stream's state, in order (docs/model.md, Codec state)."""
    past = CONV_KERNEL - 1
    window = (config.num_hidden_layers, max_history(config), config.num_key_value_heads, config.head_dim)
    pieces = [
        StatePiece("keys", window),
        StatePiece("values", window),
        StatePiece("pre_conv", (config.codebook_dim, PRE_CONV_KERNEL - 1)),
    ]
    pieces += [StatePiece(f"upsample.{i}", (config.latent_dim, past)) for i in range(len(config.upsampling_ratios))]
    pieces.append(StatePiece("decoder.0", (config.latent_dim, past)))
    channels = config.decoder_dim
    for block in range(1, len(config.upsample_rates) + 1):
        pieces.append(StatePiece(f"decoder.{block}.transposed", (channels, 1)))
        channels //= 2
        pieces += [
            StatePiece(f"decoder.{block}.residual.{i}", (channels, past * dilation))
            for i, dilation in enumerate(RESIDUAL_DILATIONS)
        ]
    pieces.append(StatePiece("decoder.final", (channels, past)))
    return tuple(pieces)


def state_size(config: CodecDecoderConfig) -> int:
    """Elements of one stream's state: 1 298 496 for the released codec."""
    return sum(piece.size for piece in state_layout(config))
