"""Two checkpoints on one tritonserver, with the real talker and codec; streamed and long text."""

import shutil
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress
from safetensors.torch import load_file, save_file

from export.encoders import SPEAKER_ENCODER, export_encoder
from export.forms.onnx_form import ONNX
from qwen3_tts_client.analysis.playback import play
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest, encode
from qwen3_tts_client.say import streamed
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_client.sync_stream import speak
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from scripts.server.add_model import add_model
from scripts.server.tritonserver import TritonServer
from tests.conftest import CheckpointOf
from tests.e2e.serving import ROOT, Caller, Received, eventually, repository_with, serve
from tests.oracle.test_encoders import recording

pytestmark = pytest.mark.long

DESIGN = "qwen3_tts_design"
CUSTOM: dict[str, Any] = {"speaker": "ryan", "language": "english"}
LONG = "The first sentence is here. A second one follows it. Now comes the third one! And is this the last one?"


@pytest.fixture(scope="module")
def server(
    tiny_code2wav: Path, checkpoint_of: CheckpointOf, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    repository = repository_with(tiny_code2wav, tmp_path_factory.mktemp("two"))
    add_model(DESIGN, str(checkpoint_of("voice_design")), repository)
    environment = {
        "QWEN3_TTS_CHECKPOINT": str(checkpoint_of("custom_voice")),
        "QWEN3_TTS_TEXT_LAYOUT": "streaming",
        "QWEN3_TTS_PART_TEXT_TOKENS": "17",
        "QWEN3_TTS_BASE_FRAMES": "12",
        "QWEN3_TTS_FRAMES_PER_TEXT_TOKEN": "1",
    }
    with serve(repository, tmp_path_factory.mktemp("server"), environment) as server:
        yield server


@pytest.fixture(scope="module")
def caller(server: TritonServer) -> Iterator[Caller]:
    with Caller(server) as caller:
        caller.speak("Warm up.", seed=0, max_frames=20)
        yield caller


def request_speech(caller: Caller, requests: list[SpeechRequest], model: str = "qwen3_tts") -> Received:
    received = Received()
    for arrival, chunk in speak(caller.stub, [encode(request, model) for request in requests], Timeouts(120, 60)):
        received.pcm.append(chunk.pcm)
        received.arrivals.append(arrival)
    return received


def test_concurrent_models_use_their_own_checkpoints(caller: Caller) -> None:
    custom = SpeechRequest("Hello there.", seed=3, max_frames=20, **CUSTOM)
    design = SpeechRequest("Hello there.", seed=3, max_frames=20, instruct="A calm old man.")
    alone = request_speech(caller, [custom]), request_speech(caller, [design], DESIGN)
    with ThreadPoolExecutor(8) as pool:
        concurrent = list(
            pool.map(lambda i: request_speech(caller, *(([custom],) if i % 2 else ([design], DESIGN))), range(8))
        )
    for i, received in enumerate(concurrent):
        expected = alone[0] if i % 2 else alone[1]
        np.testing.assert_allclose(received.samples / 32767, expected.samples / 32767, atol=1e-4)
    assert not np.array_equal(alone[0].samples, alone[1].samples)


def test_unsupported_mode_is_rejected_with_the_supported_one(caller: Caller) -> None:
    [response] = caller.stub.ModelStreamInfer(
        iter([encode(SpeechRequest("Hello.", instruct="Calm.", speaker="ryan"), DESIGN)]), timeout=30
    )
    assert "INVALID_ARG: speaker: 'ryan': this checkpoint is for VoiceDesign" in response.error_message
    [response] = caller.stub.ModelStreamInfer(iter([encode(SpeechRequest("Hello.", instruct="Calm."))]), timeout=30)
    assert "INVALID_ARG: speaker: None: required: choose one of aiden" in response.error_message


def test_metrics_are_separate_for_each_model(caller: Caller) -> None:
    def ended(model: str) -> float:
        return caller.metric("qwen3_tts_requests_total", outcome="ok", model=model)

    time.sleep(1.5)  # metrics are exported every 0.5 s
    before = [ended("qwen3_tts"), ended(DESIGN)]
    request_speech(caller, [SpeechRequest("Hello.", max_frames=5, instruct="Calm.")], DESIGN)
    eventually(lambda: ended(DESIGN) > before[1])
    assert [ended("qwen3_tts"), ended(DESIGN)] == [before[0], before[1] + 1]


@pytest.mark.timing
@pytest.mark.parametrize("model", ["qwen3_tts", DESIGN])
def test_words_sent_one_by_one_equal_the_whole_text(caller: Caller, model: str) -> None:
    how: dict[str, Any] = {"seed": 4} | (CUSTOM if model == "qwen3_tts" else {"instruct": "A calm old man."})
    whole = request_speech(caller, [SpeechRequest(LONG, **how)], model)
    words = [f"{word} " for word in LONG.split()]
    received = Received()
    sent: list[int] = []

    def type_words() -> Iterator[str]:
        for word in words:
            sent.append(time.perf_counter_ns())
            yield word
            time.sleep(0.2)

    for arrival, chunk in speak(
        caller.stub, streamed(SpeechRequest("", **how), model, type_words()), Timeouts(120, 60)
    ):
        received.pcm.append(chunk.pcm)
        received.arrivals.append(arrival)
    print(f"{model}: first audio {(received.arrivals[0] - sent[0]) / 1e6:.0f} ms after the first of {len(words)} words")
    assert received.arrivals[0] < sent[2], "first audio before the third word"
    assert len(received.samples) == len(whole.samples)
    np.testing.assert_allclose(received.samples / 32767, whole.samples / 32767, atol=1e-4)


@pytest.mark.timing
def test_long_text_plays_without_a_stall(caller: Caller) -> None:
    """A part costs one prefill, without a pause."""
    received = request_speech(caller, [SpeechRequest(LONG, seed=0, **CUSTOM)])
    assert play(received.arrivals, [len(pcm) for pcm in received.pcm], SAMPLE_RATE).stalled_ns == 0


def test_client_streams_standard_input(server: TritonServer, tmp_path: Path) -> None:
    url = f"localhost:{server.ports.grpc}"
    command = [sys.executable, "-m", "qwen3_tts_client", "say", "-u", url, "-", "--seed", "4"]
    for name, value in CUSTOM.items():
        command += [f"--{name}", value]
    with subprocess.Popen(
        [*command, "--output", "-"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Hello there, this ")
        process.stdin.flush()
        first = process.stdout.read(1920 * 2)
        assert len(first) == 1920 * 2, "audio starts before the text is complete"
        process.stdin.write("is a größer test.".encode())
        process.stdin.close()
        rest = process.stdout.read()
        assert process.wait(60) == 0
    spoken = tmp_path / "whole.wav"
    subprocess.run(
        [*command[:6], "Hello there, this is a größer test.", *command[7:], "--output", str(spoken)],
        cwd=ROOT, check=True, timeout=60,
    )  # fmt: skip
    with wave.open(str(spoken)) as file:
        whole = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    np.testing.assert_allclose(np.frombuffer(first + rest, np.int16) / 32767, whole / 32767, atol=1e-4)


def test_invalid_piece_ends_the_client_stream_with_an_error(caller: Caller) -> None:
    pieces = ["Hello <|im_end|> "]
    with pytest.raises(SpeechError, match="control tokens are not allowed"):
        list(speak(caller.stub, streamed(SpeechRequest("", **CUSTOM), "qwen3_tts", pieces), Timeouts(30, 30)))


def test_two_base_checkpoints_use_separate_speaker_encoders(
    tiny_base_models: Path, checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    """The checkpoints differ only in the speaker encoder; a model does not start with the encoder of another."""
    base, other = checkpoint_of("base"), tmp_path / "other"
    shutil.copytree(base, other)
    tensors = load_file(base / "model.safetensors")
    halved = {n: tensor / 2 for n, tensor in tensors.items() if n.startswith("speaker_encoder.fc.")}
    save_file(tensors | halved, other / "model.safetensors")
    repository = repository_with(tiny_base_models, tmp_path)
    with Progress(disable=True) as progress:
        folder = repository / "speaker_encoder_other"
        export_encoder(SPEAKER_ENCODER, Checkpoint.open(str(other)), folder, ONNX.encoders, progress)
    add_model("qwen3_tts_other", str(other), repository)
    environment = {"QWEN3_TTS_CHECKPOINT": str(base), "QWEN3_TTS_VOICES_FOLDER": str(tmp_path / "voices")}
    clone = SpeechRequest(
        "Hello there.", ref_audio=recording(24000, 30_000), ref_sample_rate=24000, x_vector_only=True,
        temperature=0.0, max_frames=12,
    )  # fmt: skip
    with serve(repository, tmp_path / "server", environment) as server, Caller(server) as caller:
        first, second = (request_speech(caller, [clone], model).samples for model in ("qwen3_tts", "qwen3_tts_other"))
    assert len(first) > 0
    assert len(second) > 0
    assert not np.array_equal(first, second)
