"""What sounds say: words by pocketsphinx, and the nearest of several sounds by dynamic time warping."""

import re
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import soxr

from scripts.demo_voice.sizes import RATE

EAR_RATE, PAUSE, LEVEL = 16_000, 4000, 12_000.0
WINDOW, HOP, BANDS, CEPSTRA = 512, 256, 26, 13


class Ears:
    """Recognises English words; requires the package pocketsphinx."""

    @cached_property
    def _decoder(self) -> Any:
        from pocketsphinx import Decoder

        return Decoder(samprate=EAR_RATE, loglevel="FATAL")

    def __call__(self, samples: np.ndarray) -> str:
        """int16 samples at 24 kHz"""
        heard = soxr.resample(samples.astype(np.float32), RATE, EAR_RATE)
        heard = np.pad(heard * (LEVEL / max(1.0, np.abs(heard).max())), PAUSE)
        # Digital silence would be no sound at all.
        heard += 5 * np.random.default_rng(0).standard_normal(len(heard))
        self._decoder.start_utt()
        self._decoder.process_raw(heard.astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return str(found.hypstr) if found else ""


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z' ]", " ", text.lower()).split()


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Substitutions, insertions and deletions, and the number of words said."""
    expected = words(said)
    return _align(expected, words(heard))[0], len(expected)


def words_heard(said: str, heard: str) -> tuple[int, int]:
    """Words said that are heard in their place, and the number of words said."""
    expected = words(said)
    return -_align(expected, words(heard))[1], len(expected)


def _align(expected: list[str], found: list[str]) -> tuple[int, int]:
    """Errors, and less the words found, of the alignment with the fewest errors and then the most words."""
    row = [(j, 0) for j in range(len(found) + 1)]
    for i, word in enumerate(expected, 1):
        diagonal, row[0] = row[0], (i, 0)
        for j, other in enumerate(found, 1):
            (above, kept), (before, kept_before), (errors, kept_both) = row[j], row[j - 1], diagonal
            both = (errors, kept_both - 1) if word == other else (errors + 1, kept_both)
            diagonal, row[j] = row[j], min((above + 1, kept), (before + 1, kept_before), both)
    return row[-1]


def cepstra(samples: np.ndarray) -> np.ndarray:
    """Normalised mel-cepstra [frames, 12] of int16 samples."""
    sound = soxr.resample(samples.astype(np.float32) / 32768, RATE, EAR_RATE)
    if len(sound) < WINDOW:
        return np.zeros((1, CEPSTRA - 1))
    frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::HOP] * np.hanning(WINDOW)
    logarithms = np.log(np.abs(np.fft.rfft(frames)) ** 2 @ _bank().T + 1e-4)
    bands = np.arange(BANDS) + 0.5
    cosines = np.cos(np.pi / BANDS * np.arange(1, CEPSTRA)[:, None] * bands)
    found = logarithms @ cosines.T
    normalised: np.ndarray = (found - found.mean(0)) / (found.std() + 1e-6)
    return normalised


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Mean distance along the best alignment of two sequences of vectors."""
    far = np.sqrt(np.maximum(0, (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T))
    cost = np.full((len(a) + 1, len(b) + 1), np.inf)
    cost[0, 0] = 0
    for k in range(2, len(a) + len(b) + 1):  # by antidiagonals
        i = np.arange(max(1, k - len(b)), min(len(a), k - 1) + 1)
        j = k - i
        cost[i, j] = far[i - 1, j - 1] + np.minimum(np.minimum(cost[i - 1, j], cost[i, j - 1]), cost[i - 1, j - 1])
    return float(cost[-1, -1] / (len(a) + len(b)))


def nearest(found: np.ndarray, candidates: list[np.ndarray]) -> int:
    return int(np.argmin([distance(found, candidate) for candidate in candidates]))


def _bank() -> np.ndarray:
    """Triangular mel bands [BANDS, WINDOW / 2 + 1]."""
    top = 2595 * np.log10(1 + EAR_RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1) / EAR_RATE * WINDOW
    bins = np.arange(WINDOW // 2 + 1)
    bands = zip(pairwise(edges), pairwise(edges[1:]), strict=False)
    rows = [np.minimum((bins - a) / (b - a), (d - bins) / (d - c)) for (a, b), (c, d) in bands]
    bank: np.ndarray = np.clip(np.stack(rows), 0, None)
    return bank
