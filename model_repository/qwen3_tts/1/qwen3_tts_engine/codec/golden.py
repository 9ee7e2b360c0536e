"""Golden cases of the codec, beside the model file: codes and their samples by the FP32 PyTorch step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from qwen3_tts_engine.audio import NUM_CODEBOOKS, SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.configs import CheckpointError

GOLDEN = "golden.safetensors"
CODES, PCM = "codes", "pcm"


@dataclass(frozen=True)
class Golden:
    """Utterances from a zero state: `codes` int32 [utterances, frames, codebooks], `pcm` int16 [utterances, samples].

    `snr_db` is the SNR that the codec's form guarantees.
    """

    codes: np.ndarray
    pcm: np.ndarray
    snr_db: float
    codec_digest: str

    @classmethod
    def read(cls, folder: Path, codec_digest: str) -> Self:
        """The golden cases in a version folder; raises CheckpointError when they belong to another codec."""
        path = folder / GOLDEN
        if not path.is_file():
            raise CheckpointError(f"{path}: missing; `python -m export` of the checkpoint writes it beside the codec")
        try:
            golden = cls._load(path)
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise CheckpointError(f"{path}: unreadable: {error}: export this checkpoint's codec again") from None
        if golden.codec_digest != codec_digest:
            wrong = f"codec_digest is {golden.codec_digest}, the checkpoint has {codec_digest}"
            raise CheckpointError(f"{path}: {wrong}: export this checkpoint's codec again")
        return golden

    @classmethod
    def _load(cls, path: Path) -> Self:
        with safe_open(path, framework="np") as file:
            facts = file.metadata() or {}
            codes, pcm = file.get_tensor(CODES).astype(np.int32), file.get_tensor(PCM)
        utterances, frames, codebooks = codes.shape
        if codebooks != NUM_CODEBOOKS or pcm.shape != (utterances, frames * SAMPLES_PER_FRAME) or pcm.dtype != np.int16:
            raise ValueError(f"{pcm.dtype} samples {list(pcm.shape)} for codes {list(codes.shape)}")
        return cls(codes, pcm, float(facts["snr_db"]), facts["codec_digest"])

    def write(self, path: Path) -> None:
        facts = {"snr_db": str(self.snr_db), "codec_digest": self.codec_digest}
        save_file({CODES: self.codes.astype(np.int16), PCM: self.pcm}, path, facts)
