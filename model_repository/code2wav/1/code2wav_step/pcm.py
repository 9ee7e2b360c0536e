"""Conversion of the waveform to PCM."""

import numpy as np

from code2wav_step.config import Contract


def to_int16(waveform: np.ndarray, contract: Contract) -> np.ndarray:
    """fp32 [B, samples] -> int16 [B, samples]. A row that overflowed begins with `contract.no_sample` and a 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        overflowed = ~np.isfinite(waveform.sum(-1))
        pcm: np.ndarray = np.rint(waveform.clip(-1, 1) * np.float32(contract.pcm_scale)).astype(np.int16)
    pcm[overflowed, :2] = contract.no_sample, 0
    return pcm


def mark_denied(pcm: np.ndarray, denied: np.ndarray, contract: Contract) -> None:
    """int16 [B, samples], in place: denied rows, bool [B], begin with `contract.no_sample` twice."""
    pcm[denied, :2] = contract.no_sample
