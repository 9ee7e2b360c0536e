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
CODES, STATE, HISTORY = "codes", "state", "history"
WAVEFORM, STATE_OUT = "waveform", "state_out"
# Shared states, in the form `python` only: the request parameter with their address, the input with the rows before and
# after the call and the history, and the output.
STATES, PLACES, PCM = "states", "places", "pcm"
# int16 samples of full scale, and the first sample of a row that overflowed and holds no audio: no other is as low.
PCM_SCALE, OVERFLOW = 32767, -32768
# Names of the files in memory that hold shared states and the note about them: a process that opens one by its path
# checks its purpose.
STATES_MEMORY, NOTE_MEMORY = "qwen3_tts_states", "qwen3_tts_note"

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
        "state": STATE,
        "history": HISTORY,
        "waveform": WAVEFORM,
        "state_out": STATE_OUT,
        "states": STATES,
        "places": PLACES,
        "pcm": PCM,
        "states_memory": STATES_MEMORY,
        "note_memory": NOTE_MEMORY,
        "max_frames": MAX_FRAMES,
        "max_batch": MAX_BATCH,
        "pcm_scale": PCM_SCALE,
        "overflow": OVERFLOW,
    }


@dataclass(frozen=True)
class StatePiece:
    """A named part of the state vector, stored flat in this shape; convolution histories are [channels, samples]."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def input_shapes(rows: int, frames: int, state_size: int) -> dict[str, list[int]]:
    """Input shapes of a batch of `rows` streams with `frames` new frames each."""
    return {CODES: [rows, frames, NUM_CODEBOOKS], STATE: [rows, state_size], HISTORY: [rows, 1]}


def served_shapes(chunk_frames: Sequence[int], state_size: int) -> list[dict[str, list[int]]]:
    """input_shapes of the smallest and the largest batch of each chunk length."""
    return [input_shapes(rows, frames, state_size) for frames in chunk_frames for rows in (1, MAX_BATCH)]


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
