import numpy as np
import torch

from code2wav_step.kernels.streamed_product import in_columns


def arranged(weight: np.ndarray, *, ordered: bool = False) -> np.ndarray:
    """A weight [outputs, taps, channels] as streamed_product.in_columns gives it."""
    rows = torch.from_numpy(weight.reshape(len(weight), -1))
    return in_columns(rows, weight.shape[1], ordered=ordered).numpy()
