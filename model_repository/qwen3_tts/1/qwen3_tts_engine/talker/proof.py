"""Compares a runner with the talker's golden cases: its graphs, kernels, pages and prompts beside frames."""

import logging
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.talker.golden import FRAMES, Cases, DrivenTick, TalkerGolden, distance, drive, pages_of_slot
from qwen3_tts_engine.talker.golden import stored as stored_by
from qwen3_tts_engine.talker.runner import TalkerRunner

log = logging.getLogger(__name__)

BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
# Distance of keys and values from those of FP32, in distances that rounding each layer's results makes; and at least.
ROUNDINGS, LEAST_DISTANCE = 4.0, 0.01
# How far below the best code's logit that of a drawn one may be, in standard deviations: less is a near tie.
MOST_LOSS = 0.5
# Distance of what is fed next from the sum of the drawn codes' embeddings: two roundings to bfloat16.
MOST_FED = 0.01


class TalkerProofError(RuntimeError):
    """The talker must not serve with these operations; the message says where they differ."""


@dataclass(frozen=True)
class Found:
    """The worst of a batch: distances of keys and values and of what is fed next, and the loss of a drawn code.

    `dependent` is the number of rows whose keys and values are others than in an earlier batch, where none may be.
    """

    batch: int
    stored: float = 0.0
    fed: float = 0.0
    loss: float = 0.0
    dependent: int = 0

    def __str__(self) -> str:
        text = f"{self.batch}: keys and values {self.stored:.3f}, codes {self.loss:.2f}, fed {self.fed:.3f}"
        return f"{text}, {self.dependent} rows depend on the batch" if self.dependent else text


class TalkerProof:
    """Runs in slots and pages of the runner that no stream has yet."""

    def __init__(self, runner: TalkerRunner, golden: TalkerGolden, cases: Cases) -> None:
        self._runner, self._golden, self._cases = runner, golden, cases
        self._spread = _deviation(golden.logits)
        # Keys and values of each utterance, when it was first spoken.
        self._first: dict[int, Tensor] = {}
        self._most_stored = max(ROUNDINGS * golden.rounding, LEAST_DISTANCE)

    def run(self, seconds: float) -> None:
        """All batches that fit into `seconds`, at least the first. Raises TalkerProofError."""
        started, limits, pages = time.perf_counter(), self._runner.limits, pages_of_slot(self._runner)
        # Streams may have to be shorter than some utterances; the settings leave room for the shortest one.
        rows = np.array([len(prompt) for prompt in self._cases.prompts])
        fitting = np.flatnonzero(rows + FRAMES <= limits.max_positions)
        most = min(limits.num_slots, limits.num_pages // pages)
        found: list[Found] = []
        for batch in (batch for batch in BATCHES if batch <= max(most, 1)):
            if not found or time.perf_counter() - started < seconds:
                found.append(self.speak(fitting[(np.arange(batch) + batch) % len(fitting)]))
        if wrong := [one for one in found if not self.is_right(one)]:
            raise TalkerProofError(
                f"the talker differs from its golden cases with {len(wrong)} of {len(found)} batch sizes "
                f"({'; '.join(map(str, wrong))}; at most {self._most_stored:.3f}, {MOST_LOSS}, {MOST_FED})"
            )
        worst = max(one.stored for one in found)
        log.info(
            "the talker agrees with its golden cases: batches %s, worst distance %.3f (%.3f allowed), %.2f s",
            ", ".join(str(one.batch) for one in found), worst, self._most_stored, time.perf_counter() - started,
        )  # fmt: skip

    def is_right(self, found: Found) -> bool:
        is_close = found.stored <= self._most_stored and found.fed <= MOST_FED and found.loss <= MOST_LOSS
        return is_close and not found.dependent

    def speak(self, utterances: np.ndarray) -> Found:
        """One batch, of an utterance in each slot, int64 [slots]."""
        batch, fed, loss = len(utterances), 0.0, 0.0
        for tick in drive(self._runner, self._cases, utterances.tolist()):
            loss = max(loss, self._loss(tick, utterances[tick.slots]))
            if loss == math.inf:
                # Such a code may select a row outside of the tables.
                return Found(batch, loss=loss)
            fed = max(fed, self._runner.distance_of_input(tick.slots, tick.codes))
        kept = [self._stored(slot, utterance) for slot, utterance in enumerate(utterances.tolist())]
        return Found(batch, max(away for away, _ in kept), fed, loss, sum(is_other for _, is_other in kept))

    def _stored(self, slot: int, utterance: int) -> tuple[float, bool]:
        """The distance of a slot's keys and values, and whether they depend on the batch although they must not."""
        found = stored_by(self._runner, slot, len(self._cases.prompts[utterance]))
        is_other = self._runner.rows_are_independent and not torch.equal(
            found, self._first.setdefault(utterance, found)
        )
        return distance(found, self._golden.stored[utterance].to(found.device)), is_other

    def _loss(self, tick: DrivenTick, utterances: np.ndarray) -> float:
        """The largest loss of a code, as long as all before it in its frame agree; infinite for one that cannot be."""
        rows, frames = torch.from_numpy(utterances), torch.from_numpy(tick.frames)
        logits, best = self._golden.logits[rows, frames], self._golden.codes[rows, frames]
        codes = torch.from_numpy(tick.codes)
        if bool(((codes < 0) | (codes >= logits.shape[2])).any()):
            return math.inf
        lost = (logits.amax(2) - logits.gather(2, codes[:, :, None]).squeeze(2)) / self._spread[rows, frames]
        agree = (codes == best).cumprod(1)
        counts = torch.cat([torch.ones_like(agree[:, :1]), agree[:, :-1]], dim=1).bool()
        return float(lost[counts].max())


def _deviation(logits: Tensor) -> Tensor:
    """Standard deviation of the finite logits, [..., codes] to [...]."""
    finite = logits.isfinite()
    count, values = finite.sum(-1), logits.where(finite, 0.0)
    mean = values.sum(-1) / count
    return ((values - mean[..., None]).square().where(finite, 0.0).sum(-1) / count).sqrt()
