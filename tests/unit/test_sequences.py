"""Who asks for a sequence that has just failed hears so behind the reason."""

import threading
import time
from unittest.mock import MagicMock

import pytest

from qwen3_tts_engine.request import InvalidRequest
from qwen3_tts_engine.sequences import Sequences


def test_nobody_hears_that_a_sequence_is_not_open_before_its_caller_knows_why() -> None:
    sequences = Sequences(MagicMock(), MagicMock(), idle_seconds=60)
    sequence = sequences.open(7, "Hello ", last=False)
    telling, told = threading.Event(), threading.Event()

    def tell() -> None:
        telling.set()
        time.sleep(0.1)
        told.set()

    failing = threading.Thread(target=sequences.abandon, args=(sequence, tell))
    failing.start()
    telling.wait()
    with pytest.raises(InvalidRequest, match="sequence_id: 7: not open"):
        sequences.append(7, "there.", last=True)
    assert told.is_set()
    failing.join()
    sequences.open(7, "Again.", last=True)
