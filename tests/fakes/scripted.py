"""Deterministic stand-ins for the parts around the scheduler: talker, codec, prompts and sinks."""

import threading
import time
from collections.abc import Collection

import numpy as np

from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.core.batches import Chunks, Frames, Newcomer, TextFeed
from qwen3_tts_engine.core.streams import Prompt, Sink, Status, Stream, Summary
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.request import RequestError, Sampling
from qwen3_tts_engine.scheduling.slot_table import SlotTable

NUM_CODEBOOKS = 16
SIGNATURES = 2048
ENDLESS = 1 << 30


class ScriptedRunner:
    """Frame t of a stream with seed s has codes (s mod 2048, t mod 2048, 0, ...).

    It ends at its cap, or after `lengths[s]` frames.
    """

    def __init__(self, num_slots: int, tick_seconds: float = 0.0, lookahead: int = 0, page_size: int = 8) -> None:
        self.limits = RunnerLimits(
            num_slots, num_pages=1 << 16, page_size=page_size, max_positions=1 << 16, max_trailing=0
        )
        self.lookahead = lookahead
        self.has_graphs = False
        self.checks_pages = False
        self.tick_seconds = tick_seconds
        self.row_seconds = 0.0
        self.fail: BaseException | None = None
        self.prefill_failures: dict[int, Exception] = {}
        self.lengths: dict[int, int] = {}
        self.fed: list[TextFeed] = []
        self.launched = self.collected = 0
        self.gate = threading.Event()
        self.gate.set()
        self._signature = np.zeros(num_slots, np.int64)
        self._frame = np.zeros(num_slots, np.int64)
        self._length = np.zeros(num_slots, np.int64)
        self._rows = np.zeros(num_slots, np.int64)
        self._pages: list[list[int]] = [[] for _ in range(num_slots)]

    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        failed = []
        for newcomer in newcomers:
            seed = newcomer.stream.sampling.seed
            self._signature[newcomer.slot] = seed % SIGNATURES
            self._frame[newcomer.slot] = len(newcomer.frames)
            assert (newcomer.frames[:, 1:2].ravel() == np.arange(len(newcomer.frames)) % SIGNATURES).all()
            self._rows[newcomer.slot] = len(newcomer.stream.prompt)
            self._pages[newcomer.slot] = list(newcomer.pages)
            self._length[newcomer.slot] = self.lengths.get(seed, ENDLESS)
            if seed in self.prefill_failures:
                failed.append((newcomer, self.prefill_failures[seed]))
        return failed

    def grow(self, grown: np.ndarray) -> None:
        for slot, place, page in grown.tolist():
            assert place == len(self._pages[slot])
            self._pages[slot].append(page)

    def feed(self, feeds: list[TextFeed]) -> None:
        self.fed += feeds

    def launch(self, slots: np.ndarray) -> Frames:
        if self.fail:
            raise self.fail
        self.gate.wait()
        if self.checks_pages:
            self._check_pages(slots)
        self.launched += 1
        time.sleep(self.tick_seconds + self.row_seconds * len(slots))
        codes = np.zeros((len(slots), NUM_CODEBOOKS), np.int64)
        codes[:, 0], codes[:, 1] = self._signature[slots], self._frame[slots] % SIGNATURES
        ended = self._frame[slots] >= self._length[slots]
        self._frame[slots] += 1
        return Frames(codes, ended)

    def _check_pages(self, slots: np.ndarray) -> None:
        """Every position that is written or read lies in a page of its own stream."""
        positions = self._rows[slots] + np.maximum(self._frame[slots], 1) - 1
        pages = [page for slot in slots for page in self._pages[slot]]
        assert len(set(pages)) == len(pages)
        held = [len(self._pages[slot]) * self.limits.page_size for slot in slots]
        assert (positions <= held).all()

    def collect(self, tick: Frames) -> Frames:
        self.collected += 1
        return tick


class ScriptedCodec:
    """The first two samples of each frame are its first two codes, the rest is zero."""

    def __init__(self, max_calls: int = 1) -> None:
        self.max_calls = max_calls
        self.calls: list[tuple[int, int]] = []
        self.claims = 0
        self.fail: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def announce(self) -> None: ...

    def claim(self) -> None:
        self._answer()
        self.claims += 1

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        self._answer()
        rows, frames = chunks.codes.shape[:2]
        self.calls.append((rows, frames))
        return scripted_pcm(chunks.codes), {}

    def _answer(self) -> None:
        self.gate.wait()
        if self.fail:
            raise self.fail


class Listener:
    """A sink that records its audio, and in `late` the chunks sent after an end without error."""

    def __init__(self) -> None:
        self.pcm: list[np.ndarray] = []
        self.words: list[str] = []
        self.error: RequestError | None = None
        self.summary: Summary | None = None
        self.ends = 0
        self.late = 0
        self.ended = threading.Event()
        self.send_error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None:
        self.gate.wait()
        if self.send_error:
            raise self.send_error
        self.late += self.ends and self.error is None
        self.pcm.append(pcm)
        self.words += words

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None:
        self.summary = summary
        self.ends += 1
        self.error = error
        self.ended.set()

    def signatures(self) -> list[tuple[int, int]]:
        """(seed, frame) of every frame received."""
        if not self.pcm:
            return []
        frames = np.concatenate(self.pcm).reshape(-1, SAMPLES_PER_FRAME)
        return [(int(a), int(b)) for a, b in frames[:, :2]]


def scripted_pcm(codes: np.ndarray) -> np.ndarray:
    """int [chunks, frames, codebooks] → int16 [chunks, samples]."""
    chunks, frames, _ = codes.shape
    pcm = np.zeros((chunks, frames, SAMPLES_PER_FRAME), np.int16)
    pcm[:, :, :2] = codes[:, :, :2]
    return pcm.reshape(chunks, -1)


def make_stream(key: str, sink: Sink, seed: int = 0, max_frames: int = 8, rows: int = 4) -> Stream:
    prompt = Prompt(np.zeros(rows, np.int32), np.zeros((rows, NUM_CODEBOOKS), np.int32), [], rows)
    sampling = Sampling(
        temperature=0, top_k=0, top_p=1, repetition_penalty=1,
        predictor_temperature=0, predictor_top_k=0, predictor_top_p=1, seed=seed,
    )  # fmt: skip
    return Stream(key, prompt, sampling, max_frames, sink)


def start_in_slot(table: SlotTable, slot: int, stream: Stream) -> None:
    """Starts a stream as the scheduler does, without pages."""
    table.move(stream, Status.WAITING)
    table.open(slot, stream)
    table.move(stream, Status.RUNNING)
