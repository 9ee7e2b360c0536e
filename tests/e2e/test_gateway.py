"""The gateway in front of a real tritonserver with the tiny checkpoint, called by the OpenAI SDK."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

from scripts.embedded.server import EXPLICIT, TritonServer
from tests.e2e.serving import Caller, serve, speech_repository
from tests.fakes.gateway import RunningGateway

TEXT = "Hello there, how are you?"
FRAMES = 30
SEED = 11


@pytest.fixture(scope="module")
def server(
    tiny_code2wav: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    repository = speech_repository(tiny_code2wav, tmp_path_factory.mktemp("speech"))
    options = (*EXPLICIT, "--model-config-name=onnxruntime")
    environment = {"QWEN3_TTS_CHECKPOINT": str(tiny_checkpoint)}
    with serve(repository, tmp_path_factory.mktemp("server"), environment, options) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server: TritonServer) -> Iterator[RunningGateway]:
    with RunningGateway(f"localhost:{server.ports.grpc}") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(server: TritonServer) -> np.ndarray:
    """The samples over gRPC."""
    with Caller(server) as caller:
        return caller.speak(TEXT, speaker="serena", seed=SEED, max_frames=FRAMES).samples


def test_pcm_equals_grpc(client: openai.OpenAI, expected: np.ndarray) -> None:
    spoken = client.audio.speech.create(
        model="gpt-4o-mini-tts",
        voice="alloy",
        input=TEXT,
        response_format="pcm",
        extra_body={"seed": SEED, "max_new_tokens": FRAMES},
    )
    np.testing.assert_allclose(np.frombuffer(spoken.content, "<i2"), expected, atol=4)
