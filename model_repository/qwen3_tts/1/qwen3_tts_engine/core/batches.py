"""What passes between scheduler, runner and codec in a tick or a codec call."""

from dataclasses import dataclass, field, replace

import numpy as np

from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.core.words import Pause, WordEvent

# Unit of Frames.spoken's confidence.
MILLION = 1_000_000


@dataclass(frozen=True, eq=False)
class Newcomer:
    """A stream to prefill, with copies of its slot and pages, since a cancel may change the stream's own fields.

    `frames`, int [frames, codebooks], were generated before the stream was parked; they are prefilled after the prompt.
    The first `num_cached` rows of the prompt are in its pages already, from the prefix cache. `token` is the text token
    that the last frame spoke, of a stream with word times.
    """

    stream: Stream
    slot: int
    pages: list[int]
    frames: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int16))
    num_cached: int = 0
    token: int = 0

    def rows(self, pad_text_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows to prefill: text ids int [rows] and code ids int [rows, codebooks], as in a Prompt."""
        prompt, count = self.stream.prompt, len(self.frames)
        text_ids, code_ids = prompt.text_ids[self.num_cached :], prompt.code_ids[self.num_cached :]
        if not count:
            return text_ids, code_ids
        text = [*prompt.trailing[:count], *[pad_text_id] * (count - len(prompt.trailing))]
        return np.concatenate([text_ids, text]), np.concatenate([code_ids, self.frames])

    @property
    def vector_row(self) -> int | None:
        """The row to prefill that the x-vector is added to, if any."""
        prompt = self.stream.prompt
        row = prompt.vector_row - self.num_cached
        return row if prompt.vector is not None and row >= 0 else None


@dataclass(frozen=True)
class TextFeed:
    """Streamed text for a running part: `ids` follow the first `start` ids of `trailing`.

    `late` means that the frame that should be fed the first of them was launched without it. `num_spoken` are the
    part's text tokens with these.
    """

    slot: int
    start: int
    ids: list[int]
    is_open: bool
    late: bool
    num_spoken: int


@dataclass(frozen=True)
class Batch:
    """One tick: streams to prefill, text to feed, and the slots (int64 [rows]) that generate a frame.

    `prefill_rows` is the sum over the newcomers. `grown` int64 [pages, 3] are newly assigned pages: slot, index in the
    slot's page table, page. `generations` int64 [rows] are the slots' generation counters at launch.
    """

    newcomers: list[Newcomer]
    feeds: list[TextFeed]
    grown: np.ndarray
    slots: np.ndarray
    generations: np.ndarray
    prefill_rows: int

    def __len__(self) -> int:
        return len(self.slots)

    def without(self, dropped: list[Newcomer]) -> "Batch":
        """The batch without some newcomers, since a slot without a prefilled prompt must not run."""
        if not dropped:
            return self
        rows = ~np.isin(self.slots, [newcomer.slot for newcomer in dropped])
        return replace(
            self,
            newcomers=[n for n in self.newcomers if n not in dropped],
            slots=self.slots[rows],
            generations=self.generations[rows],
        )


@dataclass(frozen=True)
class Frames:
    """Results of a tick: codes int [rows, codebooks]; `ended` bool [rows] marks rows that sampled end of speech.

    `spoken` int64 [rows, 2] is the text token that each row speaks and the confidence in it, in millionths, NONE where
    nothing was observed; only of streams with word times, None if there are none.
    """

    codes: np.ndarray
    ended: np.ndarray
    spoken: np.ndarray | None = None


@dataclass(frozen=True)
class Chunks:
    """Chunks of one length, the most urgent first.

    `codes` is int32 [chunks, frames, codebooks], `history` int32 [chunks]: frames of each stream that the codec has
    decoded, its reference included; `counts` int [chunks]: frames that hold speech; `ready_at` float [chunks]: when the
    last of them was generated; `first` and `last` bool [chunks]: whether the stream begins here, and whether it is
    known to end. A last chunk is padded to the common length; since the codec is causal, padding does not affect
    earlier samples. `words` are, by row, those that begin or end in the chunk of a stream with word times; `pauses` the
    silence before frames of the chunk.
    """

    streams: list[Stream]
    slots: np.ndarray
    codes: np.ndarray
    history: np.ndarray
    counts: np.ndarray
    ready_at: np.ndarray
    first: np.ndarray
    last: np.ndarray
    words: dict[int, list[WordEvent]] = field(default_factory=dict)
    pauses: dict[int, list[Pause]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.streams)


@dataclass(frozen=True)
class Audio:
    """The audio of a codec call.

    `pcm` are the samples to send of each chunk, int16 [samples], none while a stream's beginning is withheld;
    `silent_frames` int [chunks] counts the frames at the end of each chunk that are not audible.
    """

    pcm: list[np.ndarray]
    silent_frames: np.ndarray

    @property
    def num_samples(self) -> np.ndarray:
        """int [chunks]"""
        return np.array([len(samples) for samples in self.pcm])
