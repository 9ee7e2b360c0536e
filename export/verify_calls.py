"""Compares calls of an exported codec that keeps states in rows with the PyTorch step, in every shape of a call."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from export.agreement import PARTS, Agreement, compare_utterance
from export.golden import make_golden
from export.modules.codec import CodecStep
from export.tensorrt.process import PlanError
from export.verify import ALL_BATCHES, IRREGULAR_CHUNKS, LONG_UTTERANCE, Outcome, cycled_chunks, describe
from qwen3_tts_engine.codec.calls import ProofCall, Utterances
from qwen3_tts_engine.codec.client import Call as CallCodec
from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.codec.contract import (
    CHUNK_FRAMES,
    MAX_BATCH,
    PCM_SCALE,
    RowCounts,
    max_history,
)
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.codec.proof import CodecProof
from qwen3_tts_engine.request import RequestError

# Utterances of the batches, and their frames: longer than the window.
UTTERANCES, FRAMES = 7, 160
# Rows whose SNR is below it begin again, so that later shapes do not inherit their errors.
BROKEN_DB = 20.0
KEY = 1


class CallVerification:
    """Calls of `batches` of every chunk length, and of an utterance of that many frames."""

    def __init__(
        self,
        step: CodecStep,
        call: CallCodec,
        batches: Sequence[int] = ALL_BATCHES,
        utterance: int = LONG_UTTERANCE,
        seed: int = 0,
    ) -> None:
        """Raises PlanError where the plan has too few rows."""
        self._codec = Code2Wav(call, KEY, RowCounts(MAX_BATCH, 0), max_history(step.config), CHUNK_FRAMES[-1])
        try:
            self._codec.claim()
        except RequestError as error:
            raise PlanError(f"it cannot be verified, so it is not kept: {error}") from None
        self._step, self._batches, self._utterance = step, batches, utterance
        shapes = [ProofCall(rows, frames) for frames in CHUNK_FRAMES for rows in batches]
        # Each shape has a batch that begins utterances, so that some rows are equal, and one of all ages.
        self._calls = [*shapes, *(replace(call, cold=True) for call in shapes if call.rows > 1)]
        np.random.default_rng(seed).shuffle(self._calls)  # type: ignore[arg-type]

    def run(self) -> Iterator[Outcome]:
        """Yields the outcome of each comparison; there are `len(self)`.

        Shapes come in random order, so that none can reuse the output of its last run.
        """
        golden = make_golden(self._step, "", BROKEN_DB, UTTERANCES, FRAMES)
        proof, utterances = CodecProof(self._codec, golden), Utterances(golden, MAX_BATCH)
        for call in self._calls:
            proof.findings.snr_db.pop(str(call), None)
            proof.make(call, utterances)
            yield Outcome(f"{call.rows} x {call.frames}", Agreement(snr_db=proof.findings.snr_db[str(call)]))
        # All parts say the same: only what has added up tells them apart, not how loud some codes are.
        whole = make_golden(self._step, "", BROKEN_DB, 1, self._utterance // PARTS, repeats=PARTS)
        agreement = compare_utterance(_waveform(whole.pcm), _waveform(self._decode(whole)))
        yield Outcome(f"utterance of {self._utterance} frames", agreement)

    def __len__(self) -> int:
        return len(self._calls) + 1

    def __str__(self) -> str:
        return describe(self._batches, len(self._batches) * len(CHUNK_FRAMES), self._utterance)

    def _decode(self, golden: Golden) -> np.ndarray:
        """Samples of the first utterance, by irregular chunks."""
        utterances, slots, parts = Utterances(golden, 1), np.zeros(1, np.int64), []
        for frames in cycled_chunks(golden.codes.shape[1], IRREGULAR_CHUNKS):
            parts.append(self._codec.decode(utterances.chunks(slots, frames))[0])
            utterances.advance(slots, frames)
        return np.concatenate(parts, axis=1)


def _waveform(pcm: np.ndarray) -> Tensor:
    return torch.from_numpy(pcm.astype(np.float32)) / PCM_SCALE
