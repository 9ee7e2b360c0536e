"""How far the results of an emulated kernel are from the expected ones."""

import math
from collections.abc import Iterable

import numpy as np


def worst(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """The largest error of (found, expected) relative to the norm; infinite where a result is missing."""
    errors = [np.linalg.norm(found - expected) / np.linalg.norm(expected) for found, expected in pairs]
    return float(np.nan_to_num(errors, nan=math.inf).max())
