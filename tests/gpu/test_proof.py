"""256 utterances agree with PyTorch in FP32, in batches of 64."""

import numpy as np

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.talker.golden import FRAMES, MOST_ROWS, Cases, TalkerGolden
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.proof import TalkerProof
from tests.gpu.conftest import DEVICE
from tests.gpu.test_runner import config_of

UTTERANCES, STREAMS = 256, 64


def test_the_greedy_codes_of_many_utterances_are_those_of_pytorch_but_for_near_ties(checkpoint: Checkpoint) -> None:
    rows = np.random.default_rng(1).integers(8, MOST_ROWS - FRAMES, UTTERANCES)
    cases = Cases.of(checkpoint.config, rows.tolist())
    golden = TalkerGolden.compute(checkpoint, cases)
    runner = load_runner(checkpoint, config_of(checkpoint, max_streams=STREAMS, kv_cache_gib=0), DEVICE)
    proof = TalkerProof(runner, golden, cases)
    for utterances in np.arange(UTTERANCES).reshape(-1, STREAMS):
        found = proof.speak(utterances)
        print(found)
        assert proof.is_right(found)
