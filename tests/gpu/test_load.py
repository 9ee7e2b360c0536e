"""The engine on CUDA under random load: streams do not share pages or slots."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.interfaces import SchedulerLimits
from qwen3_tts_engine.request import Cancelled, RequestError, SynthesisRequest
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from qwen3_tts_engine.startup import on_thread
from qwen3_tts_engine.talker.loader import load_runner
from tests.fakes.scripted import Listener
from tests.gpu.conftest import DEVICE

# Up to 8 rows use the same kernels, so a stream's codes do not depend on the others.
SLOTS = 8
REQUESTS = 120
# Pages of 8 positions, enough for all streams: a parked one draws other codes, as prefills and frames round
# differently.
PAGES = 256


class CodesAsAudio:
    """A codec that returns the codes as the first samples of each frame."""

    max_calls = 1

    def announce(self) -> None: ...

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        pcm = np.zeros((*chunks.codes.shape[:2], SAMPLES_PER_FRAME), np.int16)
        pcm[:, :, : chunks.codes.shape[2]] = chunks.codes
        return pcm.reshape(len(chunks), -1), {}


@dataclass
class Utterance:
    request: SynthesisRequest
    cancel_after: float | None
    listener: Listener = field(default_factory=Listener)

    @property
    def codes(self) -> np.ndarray:
        pcm = np.concatenate([*self.listener.pcm, np.empty(0, np.int16)])
        frames: np.ndarray = pcm.reshape(-1, SAMPLES_PER_FRAME)
        return frames[:, :16]


@pytest.fixture(scope="module")
def engine(checkpoint: Checkpoint) -> Iterator[Engine]:
    config = EngineConfig(checkpoint=str(checkpoint.folder), kernels="required", max_streams=SLOTS)
    runner = load_runner(checkpoint, config, DEVICE)
    table = SlotTable(SLOTS, config.max_frames_limit, 16)
    # One prompt a prefill, as in the run alone, because rounding depends on the shape of a prefill. With 0 s, others
    # join it where that is measured to cost nothing.
    limits = SchedulerLimits(runner.limits.page_size, PAGES, SLOTS, REQUESTS, max_prefill_seconds=-1.0)
    scheduler = Scheduler(table, limits, Capacity(0, 8, batching_is_free=True))
    chunker = Chunker(table, 8, lambda streams: 0.002)
    engine = Engine(scheduler, chunker, runner, CodesAsAudio(), on_thread_start=on_thread(DEVICE))
    engine.start()
    yield engine
    engine.close()


def test_codes_under_random_load_equal_codes_alone(engine: Engine, checkpoint: Checkpoint) -> None:
    prompts = PromptBuilder(checkpoint, EngineConfig(checkpoint=str(checkpoint.folder)))
    rng = random.Random(0)
    utterances = [
        Utterance(
            SynthesisRequest.of(
                {
                    "text": "word " * rng.randint(1, 60),
                    "speaker": "ryan",
                    "seed": seed,
                    "max_frames": rng.randint(1, 150),
                    "trim_silence": False,
                }
            ),
            rng.uniform(0, 0.1) if rng.random() < 0.4 else None,
        )
        for seed in range(REQUESTS)
    ]
    # From here on every prefill finds the same rows in the prefix cache, and so has the same shape.
    first = Utterance(utterances[0].request, None)
    engine.submit(prompts.stream(first.request, first.listener, "first"))
    assert first.listener.ended.wait(30)
    cancels = []
    for key, utterance in enumerate(utterances):
        engine.submit(prompts.stream(utterance.request, utterance.listener, str(key)))
        if utterance.cancel_after is not None:
            cancels.append((time.monotonic() + utterance.cancel_after, str(key)))
        time.sleep(rng.uniform(0, 0.02))
        due = [cancel for cancel in cancels if cancel[0] < time.monotonic()]
        for cancel in due:
            engine.cancel(cancel[1])
            cancels.remove(cancel)
    for cancel in cancels:
        engine.cancel(cancel[1])
    assert all(utterance.listener.ended.wait(30) for utterance in utterances)
    assert_empty(engine)
    outcomes = [utterance.listener.error for utterance in utterances]
    assert sum(isinstance(error, Cancelled) for error in outcomes) > REQUESTS / 10
    assert all(error is None or isinstance(error, Cancelled) for error in outcomes)
    for key, utterance in enumerate(utterances):
        alone = Utterance(utterance.request, None)
        engine.submit(prompts.stream(alone.request, alone.listener, f"alone {key}"))
        assert alone.listener.ended.wait(30)
        received = utterance.codes
        np.testing.assert_array_equal(received, alone.codes[: len(received)])
        assert utterance.listener.error is not None or len(received) == len(alone.codes)


def assert_empty(engine: Engine) -> None:
    deadline = time.monotonic() + 5
    while engine.scheduler.slots.num_used and time.monotonic() < deadline:
        time.sleep(0.01)
    engine.scheduler.check_integrity()
    assert engine.scheduler.slots.num_used == engine.scheduler.pages.num_used == len(engine.scheduler.live) == 0
