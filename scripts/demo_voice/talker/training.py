"""Trains talker and code predictor together, on codes alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from scripts.demo_voice import snapshots
from scripts.demo_voice.encoding import CODES_FILE, Codes
from scripts.demo_voice.sizes import CODES, Sizes
from scripts.demo_voice.stepping import (
    Averages,
    Budget,
    Log,
    Metrics,
    Step,
    Timer,
    adam,
    best_device,
    cosine,
    half_precision,
    load_optimizer,
    readable,
    set_rate,
    update,
)
from scripts.demo_voice.talker.model import Talker
from scripts.demo_voice.talker.packs import Batch, PackedRows
from scripts.demo_voice.talker.rows import END, RowBuilder
from scripts.demo_voice.texts import training_texts
from scripts.demo_voice.tokenizer import SpokenIds

SNAPSHOT = "talker.pt"
RATE, BETAS, DECAY, NORM_LIMIT = 1.5e-3, (0.9, 0.98), 0.999, 1.0
WEIGHT_DECAY, RATE_WARM_UP = 0.05, 300
# Share of frames that are heard wrong, in half of their codes, as the talker will hear its own mistakes.
NOISE = 0.06
# Keeps the sum of exponentials near 1. Logits are then logarithms of probabilities, at most 0, and the repetition
# penalty, which multiplies negative logits, leaves frequent codes as they are.
Z_LOSS = 1e-2
NUM_HELD = 200
IGNORED = -100


class Losses(NamedTuple):
    first: Tensor
    others: Tensor
    z: Tensor
    # Logits and targets of codebook 0 and of the others.
    first_logits: Tensor
    first_targets: Tensor
    other_logits: Tensor
    other_targets: Tensor


class TalkerTraining:
    def __init__(self, sizes: Sizes, rows: PackedRows, frames: int, device: torch.device) -> None:
        """`frames`: how many frames of a step teach the code predictor."""
        self.device, self._rows, self._frames = device, rows, frames
        self.model = Talker(sizes.talker).to(device)
        self._optimizer = adam(_groups(self.model), BETAS, device)
        self.averages = Averages(self.model.parameters(), DECAY)
        self.step = 0
        self._losses: Any = losses
        self._step: Step | None = None

    def set_rate(self, share: float) -> None:
        set_rate(self._optimizer, RATE * share * min(1.0, (self.step + 1) / RATE_WARM_UP))

    def take(self, packs: Tensor) -> Metrics:
        """One step on packs of rows [batch, length]."""
        if self._step is None:
            self._step = Step(self._run, packs.to(self.device))
        metrics = self._step(packs)
        self.step += 1
        self.averages.update(self.step)
        return metrics

    def compile(self, packs: Tensor) -> None:
        """Compiles the losses where a compiler is available."""
        compiled = torch.compile(losses, dynamic=False)
        try:
            found = compiled(self.model, self._rows.batch(packs.to(self.device)), self._frames, NOISE)
            (found.first + found.others).backward()
            self._losses = compiled
        except Exception as error:  # compilers fail in many ways, and none of them matters here
            print(f"the losses are not compiled: {error!r:.300}", flush=True)

    @torch.no_grad()
    def check(self, packs: Tensor) -> str:
        """Held-out losses and shares of codes right, with averages: codebook 0 and end, then each other codebook."""
        self.model.eval()
        with self.averages:
            found = losses(self.model, self._rows.batch(packs.to(self.device)), self._frames, 0.0)
        self.model.train()
        said = found.first_targets != IGNORED
        right = (found.first_logits.argmax(-1) == found.first_targets)[said].float().mean()
        others = (found.other_logits.argmax(-1) == found.other_targets).float().mean(0)
        ends = found.first_targets == CODES
        ended = (found.first_logits.argmax(-1) == CODES)[ends].float().mean()
        shares = " ".join(f"{share:.3f}" for share in [right, ended, *others])
        return f"first {found.first:.3f} others {found.others:.3f}; right: first, end, others {shares}"

    def state(self, spent: float) -> snapshots.State:
        names = [name for name, _ in self.model.named_parameters()]
        return {
            "spent": spent,
            "step": self.step,
            "model": self.model.state_dict(),
            "averages": {"model": dict(zip(names, self.averages.values, strict=True))},
            "optimizers": [self._optimizer.state_dict()],
        }

    def load(self, state: snapshots.State) -> None:
        self.model.load_state_dict(state["model"])
        self.step = state["step"] if "optimizers" in state else 0
        self.averages.load([p.data for p in self.model.parameters()])
        if "optimizers" in state:
            load_optimizer(self._optimizer, state["optimizers"][0])
            self.averages.load(list(state["averages"]["model"].values()))

    def _run(self, packs: Tensor) -> Metrics:
        found = self._losses(self.model, self._rows.batch(packs), self._frames, NOISE)
        norm = update((self._optimizer,), found.first + found.others + Z_LOSS * found.z, NORM_LIMIT)
        return {"first": found.first.detach(), "others": found.others.detach(), "z": found.z.detach(), "norm": norm}


def losses(model: Talker, batch: Batch, frames: int, noise: float) -> Losses:
    """Cross entropies of codebook 0 with the end of speech, and of the other codebooks in a sample of the frames."""
    visible = (batch.utterance[:, :, None] == batch.utterance[:, None]).tril()[:, None]
    with half_precision(batch.text.device):
        heard = distort(batch.codes, noise) if noise else batch.codes
        states = model(model.embed(batch.text, batch.control, heard, batch.is_frame), visible)
        logits = model.codec_head(states).float()
        targets = torch.where(batch.says >= 0, batch.said[..., 0], torch.where(batch.says == END, CODES, IGNORED))
        first = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        said = (targets != IGNORED).float()
        z = (logits.logsumexp(-1).square() * said).sum() / said.sum()
        chosen = sample(batch.says >= 0, frames)
        wanted = batch.said.flatten(0, 1)[chosen]
        predicted = model.predict(states.flatten(0, 1)[chosen], wanted).float()
        others = functional.cross_entropy(predicted.flatten(0, 1), wanted[:, 1:].flatten())
    return Losses(first, others, z, logits, targets, predicted, wanted[:, 1:])


def distort(codes: Tensor, noise: float) -> Tensor:
    """Replaces half of the codes of some frames."""
    device = codes.device
    wrong = torch.rand(codes.shape[:-1], device=device) < noise
    wrong = wrong[..., None] & (torch.rand(codes.shape, device=device) < 0.5)
    return torch.where(wrong, torch.randint(0, CODES, codes.shape, device=device), codes)


def sample(says: Tensor, count: int) -> Tensor:
    """Indices of `count` random rows, flat; rows that say a frame come first."""
    draws = torch.rand(says.numel(), device=says.device) + says.flatten()
    return draws.topk(min(count, says.numel())).indices


def train(folder: Path, sizes: Sizes, *, seconds: float, total: float, batch: int, frames: int) -> None:
    """Trains for `seconds`, of `total` in all runs, on batches of `batch` packs."""
    device, path = best_device(), folder / SNAPSHOT
    torch.manual_seed(2)
    state = snapshots.load(path) if path.is_file() else None
    budget = Budget(state["spent"] if state else 0.0, seconds, total)
    log = Log("talker", budget)
    rows, held, others = read_rows(folder / CODES_FILE, sizes, device)
    training = TalkerTraining(sizes, rows, frames, device)
    if state:
        training.load(state)
    rng = np.random.default_rng(training.step)
    check, batches = rows.packs(held, rng)[:batch], _batches(rows, others, batch, rng)
    log(f"{len(rows.lengths) // 2} utterances, {sum(p.numel() for p in training.model.parameters()):,} parameters")
    if device.type == "cuda":
        training.compile(next(batches))
        log("compiled")
    _loop(training, batches, check, budget, log, folder)
    snapshots.save(training.state(budget.spent), path)
    log("ends after step", training.step, training.check(check))


def _loop(
    training: TalkerTraining, batches: Iterator[Tensor], check: Tensor, budget: Budget, log: Log, folder: Path
) -> None:
    reports, saves, begun = Timer(10), Timer(40), training.step
    while not budget.ended:
        training.set_rate(cosine(budget.spent / budget.total))
        metrics = training.take(next(batches))
        if reports.due():
            log(f"step {training.step}, {(training.step - begun) / 10:.1f}/s:", readable(metrics))
            begun = training.step
        if saves.due():
            snapshots.save(training.state(budget.spent), folder / SNAPSHOT)
            log("held:", training.check(check))


def read_rows(path: Path, sizes: Sizes, device: torch.device) -> tuple[PackedRows, np.ndarray, np.ndarray]:
    """The rows, and the numbers of held-out and of other utterances, each in both layouts."""
    codes, spoken, texts = Codes.read(path), SpokenIds(), training_texts()
    ids = spoken.of([texts[number] for number in codes.texts])
    rows = PackedRows(codes, ids, RowBuilder(sizes.talker, spoken), device)
    numbers = np.arange(len(rows.lengths))
    first = len(numbers) - 2 * min(NUM_HELD, len(codes.frames) // 4)
    return rows, numbers[first:], numbers[:first]


def _batches(rows: PackedRows, utterances: np.ndarray, batch: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Epochs without end; the packs that a last batch lacks are drawn again."""
    while True:
        packs = rows.packs(utterances, rng)
        for at in range(0, len(packs), batch):
            chosen = packs[at : at + batch]
            again = torch.from_numpy(rng.integers(len(packs), size=batch - len(chosen)))
            yield torch.cat([chosen, packs[again]])


def _groups(model: Talker) -> list[dict[str, object]]:
    """Matrices decay, embeddings and norms do not."""
    named = list(model.named_parameters())
    decaying = [p for name, p in named if p.dim() == 2 and "embedding" not in name]
    others = [p for name, p in named if p.dim() != 2 or "embedding" in name]
    return [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
