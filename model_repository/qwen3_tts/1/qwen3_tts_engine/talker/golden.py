"""Golden cases of the talker: what it stores and draws for given prompts and codes, by PyTorch in FP32 on the CPU."""

import fcntl
import hashlib
import logging
import math
import os
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qwen3_tts_engine.checkpoint.checkpoint import CONFIG, WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.checkpoint.weight_files import weight_files
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.core.streams import NONE, Prompt, Stream, Summary
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.request import RequestError, Sampling
from qwen3_tts_engine.talker import int8
from qwen3_tts_engine.talker.code_predictor import CodePredictor
from qwen3_tts_engine.talker.cpu import cores
from qwen3_tts_engine.talker.ops.interface import Hidden, Rows
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.sampling import mask_first
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.weights import NormLinear, is_of_layer

log = logging.getLogger(__name__)

# Rows of each utterance's prompt, on both sides of the borders of pages and of graphs, and its frames.
PROMPT_ROWS, FRAMES = (11, 32, 47, 130), 4
MOST_ROWS = max(PROMPT_ROWS) + FRAMES
# Share of a prompt's rows that have codes beside their text.
ROWS_WITH_CODES = 0.3
# Part of the cache's key: changes with the cases.
VERSION = 1
# Cases that take less time are computed at each start.
KEPT_SECONDS = 3.0
HEADER_BYTES = 1 << 16
LOCK = "lock"
Rounds = Literal["bfloat16", "int8"]
GREEDY = Sampling(
    temperature=0, top_k=0, top_p=1, repetition_penalty=1, predictor_temperature=0, predictor_top_k=0,
    predictor_top_p=1, seed=0,
)  # fmt: skip


@dataclass(frozen=True)
class Cases:
    """What a runner is given: prompts, and the codes fed after each frame, int64 [utterances, FRAMES, codebooks]."""

    prompts: list[Prompt]
    fed: np.ndarray

    @classmethod
    def of(cls, config: ModelConfig, prompt_rows: Sequence[int] = PROMPT_ROWS) -> Self:
        """A prompt for each number of rows, MOST_ROWS - FRAMES at most; random ids, the same each time."""
        talker, random = config.talker_config, np.random.default_rng(0)
        codebooks, codes = talker.num_code_groups, talker.code_predictor_config.vocab_size
        prompts = []
        for rows in prompt_rows:
            code_ids = random.integers(0, codes, (rows, codebooks), np.int32)
            code_ids[random.random(rows) > ROWS_WITH_CODES] = NONE
            text_ids = random.integers(0, talker.text_vocab_size, rows, np.int32)
            prompts.append(Prompt(text_ids, code_ids, [], rows))
        return cls(prompts, random.integers(0, codes, (len(prompts), FRAMES, codebooks), np.int64))


@dataclass(frozen=True)
class DrivenTick:
    """A tick of `drive`: slots and frame numbers int64 [rows], and the codes drawn, int64 [rows, codebooks]."""

    slots: np.ndarray
    frames: np.ndarray
    codes: np.ndarray


def drive(runner: TalkerRunner, cases: Cases, utterances: Sequence[int], *, joins: bool = True) -> Iterator[DrivenTick]:
    """Speaks FRAMES frames of an utterance in each slot.

    `joins` makes the last of several slots join the others at their second frame.
    """
    slots, fed = np.arange(len(utterances)), cases.fed[list(utterances)]
    newcomers = [_newcomer(runner, cases.prompts[utterance], slot) for slot, utterance in enumerate(utterances)]
    first = len(slots) - (joins and len(slots) > 1)
    arrivals, frames = {0: newcomers[:first], 1: newcomers[first:]}, np.zeros(len(slots), np.int64)
    for tick in range(FRAMES + (first < len(slots))):
        if (arriving := arrivals.get(tick)) and (failed := runner.prefill(arriving)):
            raise failed[0][1]
        running = slots[: first if tick == 0 else None]
        running = running[frames[running] < FRAMES]
        codes = runner.collect(runner.launch(running)).codes
        yield DrivenTick(running, frames[running], codes)
        runner.replace_input(running, fed[running, frames[running]])
        frames[running] += 1


def stored(runner: TalkerRunner, slot: int, rows: int) -> Tensor:
    """Keys and values of the last layer for a slot's prompt of `rows` and its frames, float32 [2, positions, width]."""
    positions = torch.arange(rows + FRAMES - 1) + slot * pages_of_slot(runner) * runner.limits.page_size
    cache = runner.cache.data[-1]
    return cache[:, positions.to(cache.device)].flatten(2).float()


def pages_of_slot(runner: TalkerRunner) -> int:
    return min(-(-MOST_ROWS // runner.limits.page_size), runner.limits.max_pages)


@dataclass(frozen=True)
class TalkerGolden:
    """`stored` of each utterance; greedy codes int64 [utterances, FRAMES, codebooks] and their logits, float32
    [utterances, FRAMES, codebooks, codes], -inf for codes that cannot be drawn.

    `rounding` is the distance of `stored` if a runner's rounding is made, relative to its norm (ReferenceOps).
    """

    stored: list[Tensor]
    codes: Tensor
    logits: Tensor
    rounding: float

    @classmethod
    def of(cls, checkpoint: Checkpoint, rounds: Rounds = "bfloat16") -> Self:
        """Reads the cases from the cache on disk, or computes them and, if that takes long, keeps them there."""
        path = _cache_folder() / f"{_digest(checkpoint, rounds)}.safetensors"
        if golden := cls._cached(path):
            return golden
        with _alone():
            # Another server of this checkpoint may have computed them meanwhile.
            return cls._cached(path) or cls._computed(checkpoint, rounds, path)

    @classmethod
    def _cached(cls, path: Path) -> Self | None:
        if not path.is_file():
            return None
        try:
            return cls._read(path)
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            log.warning("%s: unreadable, so computed again: %s", path, error)
            return None

    @classmethod
    def _computed(cls, checkpoint: Checkpoint, rounds: Rounds, path: Path) -> Self:
        started = time.perf_counter()
        golden = cls.compute(checkpoint, Cases.of(checkpoint.config), rounds)
        seconds = time.perf_counter() - started
        log.info("computed the talker's golden cases in %.1f s", seconds)
        if seconds < KEPT_SECONDS:
            return golden
        try:
            golden._write(path)
        except OSError as error:
            log.warning("the next start computes the talker's golden cases again: %s", error)
        return golden

    @classmethod
    def compute(cls, checkpoint: Checkpoint, cases: Cases, rounds: Rounds = "bfloat16") -> Self:
        threads = torch.get_num_threads()
        torch.set_num_threads(cores())
        try:
            runner, ops = _reference(checkpoint, len(cases.prompts))
            exact, codes, logits = _spoken(runner, ops, cases)
            ops.rounds = rounds
            for _ in _drive_reference(runner, cases):
                pass
            rounded = _all_stored(runner, cases)
        finally:
            torch.set_num_threads(threads)
        return cls(exact, codes, logits, max(map(distance, rounded, exact)))

    @classmethod
    def _read(cls, path: Path) -> Self:
        with safe_open(path, framework="pt") as file:
            keys = [file.get_tensor(f"stored.{i}").float() for i in range(len(PROMPT_ROWS))]
            rounding = float((file.metadata() or {})["rounding"])
            return cls(keys, file.get_tensor("codes"), file.get_tensor("logits").float(), rounding)

    def _write(self, path: Path) -> None:
        tensors = {f"stored.{i}": value.half() for i, value in enumerate(self.stored)}
        path.parent.mkdir(parents=True, exist_ok=True)
        # Write and rename, since another process may be reading.
        part = path.with_suffix(f".{uuid.uuid4().hex}")
        save_file(tensors | {"codes": self.codes, "logits": self.logits.half()}, part, {"rounding": str(self.rounding)})
        part.replace(path)


def distance(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference, relative to that of `expected`; infinite for values that are not finite."""
    value = float((found - expected).norm() / expected.norm())
    return value if value < math.inf else math.inf


class ReferenceOps(TorchOps):
    """Keeps the logits of each codebook; rounds a layer's results to bfloat16, or both sides of products to int8."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self.rounds: Rounds | None = None

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, together: bool = False) -> Tensor:
        if self.rounds == "int8":
            x, weight = int8.rounded(x), int8.rounded(weight.float())
        return super().multiply(x, weight, bias, together=together)

    def norm_logits(self, x: Hidden, product: NormLinear, eps: float) -> Tensor:
        self.logits.append(super().norm_logits(x, product, eps))
        return self.logits[-1]

    def norm_gated(self, x: Hidden, gate_up: NormLinear, eps: float) -> Tensor:
        return self._rounded(super().norm_gated(x, gate_up, eps))

    def add_linear(self, residual: Hidden, x: Tensor, weight: Tensor) -> None:
        super().add_linear(residual, self._rounded(x), weight)
        residual.rows.copy_(self._rounded(residual.rows))

    def _rounded(self, value: Tensor) -> Tensor:
        return value.bfloat16().to(value.dtype) if self.rounds == "bfloat16" else value


class ReferenceRunner(TalkerRunner):
    """Draws no codes while its operations round, since then only keys and values are kept."""

    def _complete(self, rows: Rows, hidden: Hidden) -> Tensor:
        assert isinstance(self._ops, ReferenceOps)
        if not self._ops.rounds:
            return super()._complete(rows, hidden)
        rows.codes.zero_()
        rows.advance(self._talker.text_table, self._talker.code_table, self._pad_text_id)
        return rows.codes


def _reference(checkpoint: Checkpoint, slots: int) -> tuple[TalkerRunner, ReferenceOps]:
    """A runner on the CPU. To save memory, weights of layers stay as stored and are widened when they are used."""
    tensors = load_tensors(checkpoint.path(WEIGHTS), talker_shapes(checkpoint.config))
    tensors = {name: tensor if is_of_layer(name, tensor) else tensor.float() for name, tensor in tensors.items()}
    ops = ReferenceOps()
    talker = Talker(checkpoint.config.talker_config, tensors, ops)
    predictor = CodePredictor(talker, tensors, ops)
    limits = RunnerLimits(slots, slots, MOST_ROWS, MOST_ROWS, 0)
    return ReferenceRunner(talker, predictor, limits, checkpoint.config.tts_pad_token_id, ops), ops


def _spoken(runner: TalkerRunner, ops: ReferenceOps, cases: Cases) -> tuple[list[Tensor], Tensor, Tensor]:
    """`stored`, codes and logits, as in TalkerGolden."""
    logits, codes = [], []
    for tick in _drive_reference(runner, cases):
        codes.append(torch.from_numpy(tick.codes.copy()))
        first, *others = ops.logits
        ops.logits.clear()
        count, rows = others[0].shape[1], len(first)
        nothing_seen, no_penalty = torch.zeros(rows, count, dtype=torch.bool), torch.ones(rows)
        drawable = mask_first(first, nothing_seen, no_penalty, torch.from_numpy(tick.frames), runner.eos)
        padded = [torch.nn.functional.pad(value, (0, first.shape[1] - count), value=-torch.inf) for value in others]
        logits.append(torch.stack([drawable, *padded], dim=1))
    return _all_stored(runner, cases), torch.stack(codes, dim=1), torch.stack(logits, dim=1)


def _drive_reference(runner: TalkerRunner, cases: Cases) -> Iterator[DrivenTick]:
    return drive(runner, cases, range(len(cases.prompts)), joins=False)


def _all_stored(runner: TalkerRunner, cases: Cases) -> list[Tensor]:
    return [stored(runner, slot, len(prompt)) for slot, prompt in enumerate(cases.prompts)]


def _newcomer(runner: TalkerRunner, prompt: Prompt, slot: int) -> Newcomer:
    count = pages_of_slot(runner)
    stream = Stream(str(slot), prompt, GREEDY, FRAMES, _Unheard())
    return Newcomer(stream, slot, list(range(slot * count, (slot + 1) * count)))


class _Unheard:
    """A core.streams.Sink of streams that no codec decodes."""

    def send(self, pcm: np.ndarray, words: Collection[str] = ()) -> None: ...

    def finish(self, error: RequestError | None, summary: Summary | None = None) -> None: ...


def _digest(checkpoint: Checkpoint, rounds: Rounds = "bfloat16") -> str:
    """Identifies the weights by their header, size and time, since to hash them takes seconds."""
    digest = hashlib.blake2b(checkpoint.path(CONFIG).read_bytes(), digest_size=16)
    for path in weight_files(checkpoint.path(WEIGHTS)):
        with path.open("rb") as file:
            digest.update(file.read(HEADER_BYTES))
        status = path.stat()
        digest.update(f"{status.st_size} {status.st_mtime_ns} {VERSION} {rounds}".encode())
    return digest.hexdigest()


@contextmanager
def _alone() -> Iterator[None]:
    """Waits for other talkers that compute cases, as those of a server's other models: each takes all cores, and
    PyTorch's threads wait for each other, so that several at once take minutes."""
    try:
        _cache_folder().mkdir(parents=True, exist_ok=True)
        lock = (_cache_folder() / LOCK).open("w")
    except OSError:
        yield
        return
    with lock:
        # Ends with the file, or with the process.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "qwen3_tts" / "golden"
