"""The real talker and the real codec through tritonserver, against the package qwen-tts."""

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
from tests.e2e.serving import Heard, Voice, copy_repository, real_backend, serve
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
    """With the stand-in for Triton's ONNX Runtime backend, or with the real one."""
    backends = [real_backend("onnxruntime")] if request.param == "real" else []
    options = (*EXPLICIT, "--model-config-name=onnxruntime")
    environment = {"QWEN3_TTS_CHECKPOINT": str(tiny_checkpoint)}
    with serve(exported_repository, tmp_path_factory.mktemp("server"), environment, options, backends) as server:
        yield server


@pytest.fixture(scope="module")
def caller(server: TritonServer) -> Iterator[Voice]:
    with Voice(server) as voice:
        voice.hear("Warm up.", seed=0, max_frames=40)
        yield voice


@pytest.mark.parametrize(("text", "language", "speaker"), TEXTS)
def test_the_waveform_is_the_reference_waveform(
    caller: Voice, tiny_checkpoint: Path, text: str, language: str, speaker: str
) -> None:
    heard = caller.hear(text, language=language, speaker=speaker, temperature=0.0, max_frames=FRAMES)
    assert heard.error is None
    model, processor = load_reference(tiny_checkpoint), load_processor(tiny_checkpoint)
    [codes] = reference_generate(
        model, processor, [text], languages=[language], speakers=[speaker], max_new_tokens=FRAMES + 1
    )
    with torch.inference_mode():
        expected = model.speech_tokenizer.model.decoder(codes.T[None])[0, 0].numpy()
    assert len(heard.samples) == len(expected)
    np.testing.assert_allclose(heard.samples / 32767, expected, atol=1e-4)


def test_equal_seeds_give_equal_speech_beside_other_streams(caller: Voice) -> None:
    alone = caller.hear(seed=11, max_frames=FRAMES)
    with ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(lambda seed: caller.hear(seed=seed, max_frames=FRAMES), [11, 1, 2, 11, 3, 4, 5, 11]))
    for heard in (crowd[0], crowd[3], crowd[7]):
        np.testing.assert_allclose(heard.samples / 32767, alone.samples / 32767, atol=1e-4)


@pytest.mark.parametrize("server", ["stand_in"], indirect=True)
def test_eight_streams_at_once_run_in_real_time(caller: Voice) -> None:
    """The best of three: what else the machine does is not the server's doing."""
    crowds = [eight_streams(caller) for _ in range(3)]
    for heard in chain(*crowds):
        assert heard.error is None
    print("RTF and stalls in ms:", [[(round(rtf(h), 2), stalled_ms(h)) for h in crowd] for crowd in crowds])
    assert any(all(rtf(heard) < 1 and stalled_ms(heard) == 0 for heard in crowd) for crowd in crowds)


def eight_streams(caller: Voice) -> list[Heard]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda seed: caller.hear("Once upon a time.", seed=seed, max_frames=71), range(8)))


def rtf(heard: Heard) -> float:
    return (heard.arrivals[-1] - heard.sent) / 1e9 / (len(heard.samples) / SAMPLE_RATE)


def stalled_ms(heard: Heard) -> float:
    return play(heard.arrivals, [len(pcm) for pcm in heard.pcm], SAMPLE_RATE).stalled_ns / 1e6
