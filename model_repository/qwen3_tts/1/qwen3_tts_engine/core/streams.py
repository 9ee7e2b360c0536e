"""Utterances in flight: their prompts, their statuses, their ends."""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import numpy as np

from qwen3_tts_engine.checkpoint.alignment import TextLayout
from qwen3_tts_engine.core.words import LEAD_SAMPLES, Pause, WordEvent, WordTimes
from qwen3_tts_engine.request import RequestError, Sampling
from qwen3_tts_engine.voice import Voice

NONE = -1
# Times that an utterance is continued: a talker that stops after each word is broken.
MAX_CONTINUED = 16
MAX_SEED = 1 << 63
NO_SAMPLES = np.empty(0, np.int16)


@dataclass(eq=False)
class Prompt:
    """A part of an utterance: rows to prefill and the text that follows them.

    Row i is the projected embedding of `text_ids[i]` plus the sum over j of the embedding of codebook j for
    `code_ids[i, j]`; NONE adds nothing. `text_ids` is int32 [rows], `code_ids` int32 [rows, codebooks]. After frame t
    the talker is fed `trailing[t]`, and the pad token after the last one. The `num_spoken` spoken tokens are at the
    talker's positions from `text_at` on, also those that are fed after the prompt; then comes the end of the text.
    A cloned voice adds `vector`, float32 [H], to row `vector_row`.

    While `is_open`, more ids follow and no pad is fed in their place. New ids enter `arrived`; `complete` marks them as
    the last. Only the scheduler moves them to `trailing`, so that the runner never reads changing data.
    """

    text_ids: np.ndarray
    code_ids: np.ndarray
    trailing: list[int]
    num_spoken: int
    text_at: int = 0
    vector: np.ndarray | None = None
    vector_row: int = NONE
    prefix_hashes: tuple[bytes, ...] = ()
    """A hash per page of the prefix that other prompts share; equal ones mean equal rows up to the end of the page."""
    max_frames: int | None = None
    """Frame cap of this part; None means that of the stream."""
    is_open: bool = False
    arrived: list[int] = field(default_factory=list)
    complete: bool = False
    layout: TextLayout = "full"
    pause: int = 0
    """Samples of silence before this part."""

    def __len__(self) -> int:
        return len(self.text_ids)

    @property
    def spoken_ids(self) -> list[int]:
        """Ids of the text."""
        ids: list[int] = [*self.text_ids.tolist(), *self.trailing][self.text_at : self.text_at + self.num_spoken]
        return ids

    def take_arrived(self) -> list[int]:
        """Move `arrived` to `trailing`; returns the moved ids."""
        taken, self.arrived = self.arrived, []
        self.trailing += taken
        self.is_open = self.is_open and not self.complete
        return taken


def no_prompt(num_codebooks: int) -> Prompt:
    """The prompt of a stream that still waits for its first text."""
    return Prompt(np.zeros(0, np.int32), np.zeros((0, num_codebooks), np.int32), [], 0)


class FinishReason(Enum):
    """Why an utterance ended."""

    STOP = "stop"
    """The talker drew the end of speech."""
    LENGTH = "length"
    """A frame cap."""
    SILENCE = "silence"
    REPETITION = "repetition"
    INCOMPLETE = "incomplete"
    """The talker drew the end of speech after fewer frames than any speech of that text takes."""


@dataclass(frozen=True)
class Summary:
    """An utterance that ended. Its parts add up; the reason is that of the first part cut short."""

    reason: FinishReason
    frames: int
    text_tokens: int
    prompt_rows: int
    withheld_samples: int
    """Leading silence that was not sent."""
    words: tuple[str, ...] = ()
    """What its last response tells about words (docs/api.md), JSON."""
    spoken_share: float | None = None
    """Share of its text tokens that were spoken; None without word times or where their confidence is low."""


class Sink(Protocol):
    """Receives a stream's audio. Called from several threads; calls after `finish` are ignored."""

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        """Deliver int16 [samples] of 24 kHz audio, and what begins or ends in it of words, JSON."""

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None:
        """End the stream; None means success, of an utterance with its summary."""


class Caller(Sink, Protocol):
    """A request's sink with its key, arrival time, voice replies and cancellation."""

    key: str
    """Unique; not chosen by the client."""
    arrived: float
    """perf_counter seconds."""

    def reply(self, voices: list[str]) -> None:
        """Send the result of a voice operation and end the request."""

    def is_cancelled(self) -> bool: ...


class Status(Enum):
    """Stages of a stream. It holds a slot from RUNNING to DRAINING, and cache pages while RUNNING."""

    NEW = "new"
    HOLDING = "holding for text"
    """Waits for its first text."""
    WAITING = "waiting for a slot"
    RUNNING = "running"
    PARKED = "parked"
    """Waits for pages; then its prompt and its frames are prefilled again."""
    RESTING = "resting between parts"
    """Waits for the text of its next part."""
    DRAINING = "draining"
    """All frames are generated, some are not decoded."""
    ENDED = "ended"


TRANSITIONS = {
    Status.NEW: {Status.HOLDING, Status.WAITING},
    Status.HOLDING: {Status.WAITING, Status.ENDED},
    Status.WAITING: {Status.RUNNING, Status.ENDED},
    Status.RUNNING: {Status.PARKED, Status.RESTING, Status.DRAINING, Status.ENDED},
    Status.PARKED: {Status.RUNNING, Status.ENDED},
    Status.RESTING: {Status.PARKED, Status.DRAINING, Status.ENDED},
    Status.DRAINING: {Status.ENDED},
    Status.ENDED: set(),
}


@dataclass(eq=False)
class Stream:
    """One utterance in flight. Times are perf_counter seconds.

    `prompt` is the current part, `following` are the next ones; while `is_open`, more text may arrive. The talker
    handles each part like a separate utterance; the codec's state continues across parts.
    """

    key: str
    prompt: Prompt
    sampling: Sampling
    max_frames: int
    sink: Sink
    voice: Voice | None = None
    status: Status = Status.NEW
    arrived: float = field(default_factory=time.perf_counter)
    admitted: float = 0.0
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    following: deque[Prompt] = field(default_factory=deque)
    is_open: bool = False
    part: int = 0
    """Index of the current part."""
    reserved_frames: int = 0
    """Frame cap of a part whose text has not arrived; no pages are reserved for it."""
    words: WordTimes | None = None
    """The times of its words, if its position in the text is followed."""
    tells_words: bool = False
    """Whether they are sent."""
    rest_of: Callable[[list[int]], Prompt] | None = None
    """Makes a part of the tokens that an earlier one left out."""
    continued: int = 0
    """Parts that were made so."""
    pauses: list[Pause] = field(default_factory=list)
    """Those before parts that have begun."""
    last_pause: int = 0
    """Samples of silence after the last part."""
    unsent_words: list[WordEvent] = field(default_factory=list)
    """Those of chunks whose audio is withheld."""
    is_withheld: bool = False
    """Whether no audio is sent yet because all of it was silent."""
    withheld: np.ndarray = field(default_factory=lambda: NO_SAMPLES)
    """Silent beginning, int16 [samples], while `is_withheld`."""
    withheld_samples: int = 0
    """Leading silence that was dropped."""
    sent_samples: int = 0
    error: RequestError | None = None
    """Why its audio could not be sent."""
    reason: FinishReason = FinishReason.STOP
    frames: int = 0
    """Frames decoded; set when the stream ends."""
    ended_tokens: int = 0
    ended_rows: int = 0
    """Spoken tokens and prompt rows of the parts before the current one."""

    @property
    def num_positions(self) -> int:
        """Maximum number of key/value positions of the stream."""
        parts = max(len(prompt) + self.part_frames(prompt) for prompt in (self.prompt, *self.following))
        return max(parts, len(self.prompt) + self.reserved_frames)

    @property
    def seed(self) -> int:
        """The seed of the current part; differs between parts, so that they do not share random numbers."""
        return (self.sampling.seed + self.part) % MAX_SEED

    def part_frames(self, prompt: Prompt) -> int:
        """Frame cap of a part."""
        return self.max_frames if prompt.max_frames is None else min(prompt.max_frames, self.max_frames)

    @property
    def summary(self) -> Summary:
        tokens, rows = self.ended_tokens + self.prompt.num_spoken, self.ended_rows + len(self.prompt)
        summary = Summary(self.reason, self.frames, tokens, rows, self.withheld_samples)
        if self.words is None:
            return summary
        left = [*self.unsent_words, *self.words.finish(self.frames)] if self.tells_words else []
        return replace(summary, words=tuple(self.told(left)), spoken_share=self.words.spoken_share)

    def told(self, events: Sequence[WordEvent], sent_samples: int = 0) -> list[str]:
        """What responses tell of `events` after `sent_samples`, JSON."""
        lead = LEAD_SAMPLES[self.prompt.layout]
        return [event.to_json(self.withheld_samples, self.pauses, lead, sent_samples) for event in events]

    def next_part(self) -> None:
        self.ended_tokens += self.prompt.num_spoken
        self.ended_rows += len(self.prompt)
        self.prompt = self.following.popleft()
        self.part += 1

    def continue_part(self) -> bool:
        """Make the next part of what the current one, which has ended, left out; False if it left nothing out."""
        prompt = self.prompt
        if not self.words or not self.rest_of or prompt.is_open or self.continued == MAX_CONTINUED:
            return False
        if (token := self.words.cut(self.part)) is None:
            return False
        self.following.appendleft(self.rest_of(prompt.spoken_ids[token:]))
        self.continued += 1
        return True

    def begin_part(self, frame: int) -> None:
        """The current part begins with this frame of the stream."""
        if self.prompt.pause:
            self.pauses.append(Pause(frame, self.prompt.pause))

    def pauses_in(self, start: int, end: int) -> list[Pause]:
        """The pauses before frames `start` up to `end`, with their frames counted from `start`."""
        return [Pause(frame - start, samples) for frame, samples in self.pauses if start <= frame < end]

    def cut(self, reason: FinishReason) -> None:
        """Record why a part ended; the first part that was cut short counts."""
        if self.reason is FinishReason.STOP:
            self.reason = reason

    def begin(self, start: int = 0) -> np.ndarray:
        """Stop withholding audio; returns what was withheld, int16 [samples], from sample `start` on, after the pause
        before the first part."""
        pause = sum(pause.samples for pause in self.pauses if not pause.frame)
        held: np.ndarray = np.concatenate([np.zeros(pause, np.int16), self.withheld[start:]])
        self.withheld = NO_SAMPLES
        self.is_withheld, self.withheld_samples = False, start
        return held
