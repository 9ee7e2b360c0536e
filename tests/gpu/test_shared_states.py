"""Codec states in GPU memory shared between processes."""

import subprocess
import sys

import torch

from qwen3_tts_engine.codec.shared_memory import shared_zeros
from tests.subprocesses import same_imports

MAP = """
import sys
import torch
from code2wav_step.config import Contract
from code2wav_step.shared_states import SharedStates
from qwen3_tts_engine.codec.contract import terms

device = torch.device(sys.argv[2])
states = SharedStates(device, 1000, Contract(**terms()), lambda place, states: None).find(sys.argv[1])
assert states.shape == (3, 1000)
assert states[0].eq(5).all()
states[2] = 7.0
torch.cuda.synchronize(device)
"""


def test_another_process_reads_and_writes_shared_states(device: torch.device) -> None:
    states, address = shared_zeros("talker", (3, 1000), torch.float16, device)
    states[0] = 5.0
    torch.cuda.synchronize()
    subprocess.run([sys.executable, "-c", MAP, address, str(device)], check=True, timeout=120, env=same_imports())
    assert states.sum(1).tolist() == [5000.0, 0.0, 7000.0]
