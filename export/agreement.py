"""Agreement of two outputs, by their worst row."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

MAX_DRIFT_DB = 3.0
# Parts of an utterance; the drift compares the first with the last.
PARTS = 4


@dataclass(frozen=True)
class Agreement:
    """Worst waveform error (full scale is 1), worst signal-to-noise ratio of any tensor, and the drop of that ratio
    from the first to the last part of an utterance."""

    max_error: float = 0.0
    snr_db: float = math.inf
    drift_db: float = 0.0

    def __str__(self) -> str:
        return f"max error {self.max_error:.1e}, SNR {self.snr_db:.1f} dB, drift {self.drift_db:.1f} dB"

    @property
    def bounds(self) -> str:
        """The limit as text."""
        drift = self.drift_db or MAX_DRIFT_DB
        return f"max error up to {self.max_error:.1e}, SNR from {self.snr_db:.1f} dB, drift up to {drift:.1f} dB"

    def within(self, limit: "Agreement") -> bool:
        """A limit without a drift allows MAX_DRIFT_DB."""
        close = self.max_error <= limit.max_error and self.snr_db >= limit.snr_db
        return close and self.drift_db <= (limit.drift_db or MAX_DRIFT_DB)

    def worst(self, other: "Agreement") -> "Agreement":
        error, drift = max(self.max_error, other.max_error), max(self.drift_db, other.drift_db)
        return Agreement(error, min(self.snr_db, other.snr_db), drift)


DISAGREEMENT = Agreement(math.inf, -math.inf)


def compare(expected: Tensor, actual: Tensor) -> Agreement:
    """The worst row of tensors [rows, size]; DISAGREEMENT for another shape or non-finite values."""
    if expected.shape != actual.shape:
        return DISAGREEMENT
    error = expected - actual.to(expected.device)
    signal, noise = (x.square().sum(1, dtype=torch.float64) for x in (expected, error))
    snr_db = torch.where(noise == 0, math.inf, 10 * torch.log10(signal / noise))
    # One transfer: each copy to the host synchronises.
    largest, worst = torch.stack([error.abs().amax().double(), snr_db.amin()]).tolist()
    return Agreement(largest, worst) if math.isfinite(largest) else DISAGREEMENT


def compare_step(expected: tuple[Tensor, Tensor], actual: tuple[Tensor, Tensor]) -> Agreement:
    """Compares waveforms and next states."""
    waveform, state = (compare(*pair) for pair in zip(expected, actual, strict=True))
    # The state is not audio: only its relative error is meaningful.
    return waveform.worst(Agreement(snr_db=state.snr_db))


def compare_utterance(expected: Tensor, actual: Tensor) -> Agreement:
    """Compares waveforms [1, samples] as a whole, and the last part with the first."""
    whole = compare(expected, actual)
    if whole == DISAGREEMENT:
        return whole
    size = expected.shape[1] // PARTS
    first, last = (compare(expected[:, part], actual[:, part]) for part in (slice(size), slice(-size, None)))
    return whole if math.isinf(last.snr_db) else replace(whole, drift_db=first.snr_db - last.snr_db)
