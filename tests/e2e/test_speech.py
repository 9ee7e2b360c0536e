"""The real talker and codec through tritonserver, compared with the package qwen-tts."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3_tts_client.analysis.playback import play
from qwen3_tts_client.protocol import SAMPLE_RATE
from scripts.embedded.server import EXPLICIT, TritonServer
from tests.e2e.serving import Caller, Received, copy_repository, real_backend, serve
from tests.oracle.reference import load_processor, load_reference, reference_generate

FRAMES = 40
TEXTS = [
    ("Hello there, how are you?", "english", "ryan"),
    ("你好，今天天气怎么样？", "chinese", "eric"),
    ("Guten Morgen.", "auto", "serena"),
]


@pytest.fixture(scope="module")
def exported_repository(tiny_code2wav: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = copy_repository(tmp_path_factory.mktemp("speech") / "model_repository", fakes=False)
    shutil.copytree(tiny_code2wav, repository, dirs_exist_ok=True)
    return repository


@pytest.fixture(scope="module", params=["stand_in", "real"])
def server(
    request: pytest.FixtureRequest,
    exported_repository: Path,
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    """A server with the stand-in for Triton's ONNX Runtime backend or with the real one."""
    backends = [real_backend("onnxruntime")] if request.param == "real" else []
    options = (*EXPLICIT, "--model-config-name=onnxruntime")
    environment = {"QWEN3_TTS_CHECKPOINT": str(tiny_checkpoint)}
    with serve(exported_repository, tmp_path_factory.mktemp("server"), environment, options, backends) as server:
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


@pytest.mark.parametrize("server", ["stand_in"], indirect=True)
def test_eight_concurrent_streams_run_in_real_time(caller: Caller) -> None:
    """Best of three runs, to exclude other load on the machine."""
    rounds = [speak_eight_streams(caller) for _ in range(3)]
    for received in chain(*rounds):
        assert received.error is None
    print("RTF and stalls in ms:", [[(round(rtf(h), 2), stalled_ms(h)) for h in concurrent] for concurrent in rounds])
    assert any(all(rtf(received) < 1 and stalled_ms(received) == 0 for received in concurrent) for concurrent in rounds)


def speak_eight_streams(caller: Caller) -> list[Received]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda seed: caller.speak("Once upon a time.", seed=seed, max_frames=71), range(8)))


def rtf(received: Received) -> float:
    return (received.arrivals[-1] - received.sent) / 1e9 / (len(received.samples) / SAMPLE_RATE)


def stalled_ms(received: Received) -> float:
    return play(received.arrivals, [len(pcm) for pcm in received.pcm], SAMPLE_RATE).stalled_ns / 1e6
