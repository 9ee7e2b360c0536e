"""Runs the codec's training: phases by the time spent, sound that arrives meanwhile, reports and snapshots."""

import time
from pathlib import Path

import torch
from torch import Tensor

from scripts.demo_voice import snapshots
from scripts.demo_voice.audio_buffer import Arrivals, AudioBuffer
from scripts.demo_voice.codec.training import FROZEN, SNAPSHOT, CodecTraining
from scripts.demo_voice.sizes import FRAME, RATE, Sizes
from scripts.demo_voice.stepping import Budget, Log, Timer, best_device, cosine, readable

# Shares of the time until the encoder is frozen: when codebooks begin, and when adversaries do.
UNQUANTIZED, ADVERSARIAL = 0.1, 0.4
HELD_CROPS = 16


def train(
    folder: Path, sizes: Sizes, *, seconds: float, total: float, freeze: float, batch: int, frames: int, hours: float
) -> None:
    """Trains for `seconds`, of `total` in all runs, and freezes encoder and codebooks after `freeze` of these."""
    device, path = best_device(), folder / SNAPSHOT
    torch.manual_seed(1)
    buffer = AudioBuffer(int(hours * 3600) * RATE // FRAME * FRAME, frames, device)
    training = CodecTraining(sizes, buffer, device)
    state = snapshots.load(path) if path.is_file() else None
    budget = Budget(state["spent"] if state else 0.0, seconds, total)
    log = Log("codec", budget)
    arrivals = _wait_for_sound(folder / "shards", buffer, frames, log, budget)
    held = HELD_CROPS * frames * FRAME
    check = buffer.crops(torch.arange(0, held, frames * FRAME, device=device))
    if state:
        training.load(state)
    else:
        training.calibrate(buffer.positions(8, held))
    _loop(training, buffer, arrivals, budget, log, freeze, (batch, held), check, folder)
    snapshots.save(training.state(budget.spent), path)
    log("ends after step", training.step, training.check(*check))


def _loop(
    training: CodecTraining,
    buffer: AudioBuffer,
    arrivals: Arrivals,
    budget: Budget,
    log: Log,
    freeze: float,
    crops: tuple[int, int],
    check: tuple[Tensor, Tensor],
    folder: Path,
) -> None:
    reports, loads, saves, begun = Timer(10), Timer(10), Timer(30), training.step
    while not budget.ended:
        phase = phase_at(budget.spent, freeze)
        if phase == "frozen" and training.phase != "frozen":
            snapshots.save({"model": training.model.state_dict()}, folder / FROZEN)
            log("frozen:", training.check(*check))
        if phase != training.phase:
            log("begins:", phase)
        training.enter(phase)
        training.set_rates(cosine(budget.spent / freeze), cosine(2 * budget.spent / budget.total - 1))
        metrics = training.take(buffer.positions(*crops))
        if reports.due():
            rate = (training.step - begun) / 10
            log(f"step {training.step}, {rate:.1f}/s, {buffer.end / RATE / 3600:.1f} h:", readable(metrics))
            begun = training.step
        if loads.due():
            arrivals.take(buffer, 60)
        if saves.due():
            snapshots.save(training.state(budget.spent), folder / SNAPSHOT)
            log("held:", training.check(*check))


def phase_at(spent: float, freeze: float) -> str:
    if spent >= freeze:
        return "frozen"
    if spent >= ADVERSARIAL * freeze:
        return "adversarial"
    return "quantized" if spent >= UNQUANTIZED * freeze else "unquantized"


def _wait_for_sound(folder: Path, buffer: AudioBuffer, frames: int, log: Log, budget: Budget) -> Arrivals:
    arrivals = Arrivals(folder)
    while arrivals.take(buffer, 60) and buffer.end < 4 * HELD_CROPS * frames * FRAME:
        if budget.ended:
            raise RuntimeError(f"{folder}: too little sound")
        time.sleep(0.5)
    log(f"begins with {buffer.end / RATE:.0f} s of speech")
    return arrivals
