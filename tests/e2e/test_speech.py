"""The real talker and codec through tritonserver, compared with the package qwen-tts."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3_tts_client.analysis.playback import play
from qwen3_tts_client.protocol import SAMPLE_RATE
from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.scheduling.capacity import URGENT_FRAMES, URGENT_LEAD
from scripts.server.tritonserver import TritonServer
from tests.e2e.serving import Caller, Received, repository_with, serve
from tests.oracle.reference import load_processor, load_reference, reference_generate

FRAMES = 40
# The seed of the eight concurrent streams whose utterance is the longest.
LONGEST = 2
TEXTS = [
    ("Hello there, how are you?", "english", "ryan"),
    ("你好，今天天气怎么样？", "chinese", "eric"),
    ("Guten Morgen.", "auto", "serena"),
]


@pytest.fixture(scope="module")
def exported_repository(tiny_code2wav: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository_with(tiny_code2wav, tmp_path_factory.mktemp("speech"))


@pytest.fixture(scope="module")
def server(
    exported_repository: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    # The machine's speed must not decide how many streams run at a time.
    environment = {"QWEN3_TTS_CHECKPOINT": str(tiny_checkpoint), "QWEN3_TTS_LOAD_LIMIT": "0"}
    with serve(exported_repository, tmp_path_factory.mktemp("server"), environment) as server:
        yield server


@pytest.fixture(scope="module")
def caller(server: TritonServer) -> Iterator[Caller]:
    with Caller(server) as caller:
        caller.speak("Warm up.", seed=0, max_frames=40)
        yield caller


@pytest.mark.parametrize(("text", "language", "speaker"), TEXTS)
def test_waveform_equals_the_reference(
    caller: Caller, tiny_checkpoint: Path, text: str, language: str, speaker: str
) -> None:
    received = caller.speak(text, language=language, speaker=speaker, temperature=0.0, max_frames=FRAMES)
    assert received.error is None
    model, processor = load_reference(tiny_checkpoint), load_processor(tiny_checkpoint)
    [codes] = reference_generate(
        model, processor, [text], languages=[language], speakers=[speaker], max_new_tokens=FRAMES + 1
    )
    with torch.inference_mode():
        expected = model.speech_tokenizer.model.decoder(codes.T[None])[0, 0].numpy()
    assert len(received.samples) == len(expected)
    np.testing.assert_allclose(received.samples / 32767, expected, atol=1e-4)


def test_equal_seeds_give_equal_speech_beside_other_streams(caller: Caller) -> None:
    alone = caller.speak(seed=11, max_frames=FRAMES)
    with ThreadPoolExecutor(8) as pool:
        concurrent = list(
            pool.map(lambda seed: caller.speak(seed=seed, max_frames=FRAMES), [11, 1, 2, 11, 3, 4, 5, 11])
        )
    for received in (concurrent[0], concurrent[3], concurrent[7]):
        np.testing.assert_allclose(received.samples / 32767, alone.samples / 32767, atol=1e-4)


@pytest.mark.timing
def test_eight_concurrent_streams_are_batched_and_fed_in_time(caller: Caller) -> None:
    """A frame of eight streams takes less than twice as long as one of a single stream, and stalls are within
    stall_limit_ms: bounds relative to the machine's speed.
    """
    alone, concurrent = speak_alone_and_with_others(caller)
    assert {received.error for received in (alone, *concurrent)} == {None}
    assert frame_seconds(concurrent[LONGEST]) < 2 * frame_seconds(alone)
    assert max(stalled_ms(received) for received in concurrent) <= stall_limit_ms(frame_seconds(concurrent[LONGEST]))


def speak_alone_and_with_others(caller: Caller) -> tuple[Received, list[Received]]:
    def say(seed: int) -> Received:
        return caller.speak("Once upon a time.", seed=seed, max_frames=71)

    with ThreadPoolExecutor(8) as pool:
        return say(LONGEST), list(pool.map(say, range(8)))


def frame_seconds(received: Received) -> float:
    """Seconds of work for a frame: of this stream and of those beside it."""
    return (received.arrivals[-1] - received.sent) / 1e9 / (len(received.samples) / SAMPLE_RATE) * FRAME_SECONDS


def stall_limit_ms(frame_seconds: float) -> float:
    """What the engine promises an urgent listener, less the first frame, which is playing meanwhile."""
    return 1e3 * max(0.0, URGENT_LEAD + URGENT_FRAMES * frame_seconds - FRAME_SECONDS)


def stalled_ms(received: Received) -> float:
    return play(received.arrivals, [len(pcm) for pcm in received.pcm], SAMPLE_RATE).stalled_ns / 1e6
