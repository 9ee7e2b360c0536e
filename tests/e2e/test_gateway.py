"""The gateway in front of a real tritonserver with the tiny checkpoint, called by clients as they are on PyPI."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from websockets.sync.client import connect

from qwen3_tts_client.protocol import SpeechRequest
from qwen3_tts_client.say import streamed
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_client.sync_stream import speak
from qwen3_tts_gateway.audio.formats import FORMATS, NATIVE_RATE
from qwen3_tts_gateway.audio.pipeline import Encoders, Pipeline
from scripts.server.tritonserver import TritonServer
from tests.e2e.serving import Caller, serve_speech
from tests.fakes.gateway import RunningGateway
from tests.unit.gateway.decoding import correlation, decode

TEXT = "Hello there, how are you?"
FRAMES = 30
SEED = 11
LOSSLESS = ("pcm", "wav", "flac")
ROUNDING = 4  # of the codec, which depends on how a stream is cut into chunks
# Correlation: the tiny checkpoint speaks noise, of which a rounding of the samples changes what a codec leaves out.
SAME_CODEC = 0.9
PADDING_S = 0.12  # of the codecs with the longest frames
SAME = {"seed": SEED, "max_new_tokens": FRAMES}


@pytest.fixture(scope="module")
def server(
    tiny_code2wav: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    with serve_speech(tiny_code2wav, tiny_checkpoint, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def caller(server: TritonServer) -> Iterator[Caller]:
    with Caller(server) as caller:
        yield caller


@pytest.fixture(scope="module")
def gateway(server: TritonServer) -> Iterator[RunningGateway]:
    with RunningGateway(f"localhost:{server.ports.grpc}") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(caller: Caller) -> np.ndarray:
    """The samples over gRPC, of the speaker behind OpenAI's voice alloy."""
    return caller.speak(TEXT, speaker="serena", seed=SEED, max_frames=FRAMES).samples


def create(client: openai.OpenAI, **fields: Any) -> bytes:
    defaults = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": TEXT, "extra_body": SAME}
    return bytes(client.audio.speech.create(**(defaults | fields)).content)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_decodes_to_the_samples_of_grpc(client: openai.OpenAI, expected: np.ndarray, name: str) -> None:
    decoded, rate = decode(create(client, response_format=name), name)
    if name in LOSSLESS:
        np.testing.assert_allclose(decoded, expected, atol=ROUNDING)
    assert abs(len(decoded) / rate - len(expected) / NATIVE_RATE) < PADDING_S
    encoder = Pipeline(name, None, None, Encoders(1))
    offline, _ = decode(asyncio.run(encoded(encoder, expected)), name)
    assert correlation(offline, decoded, rate, rate) > SAME_CODEC


async def encoded(pipeline: Pipeline, pcm: np.ndarray) -> bytes:
    return b"".join([part async for part in pipeline.encode(pcm)]) + pipeline.finish()


@pytest.mark.parametrize(("speed", "rate"), [(1.25, 24_000), (0.5, 24_000), (1.0, 8000), (2.0, 16_000)])
def test_speed_and_sample_rate_set_the_duration(
    client: openai.OpenAI, expected: np.ndarray, speed: float, rate: int
) -> None:
    body = SAME | {"sample_rate": rate}
    decoded, decoded_rate = decode(create(client, response_format="wav", speed=speed, extra_body=body), "wav")
    assert decoded_rate == rate
    assert len(decoded) / rate == pytest.approx(len(expected) / NATIVE_RATE / speed, rel=0.05)


def test_a_streamed_response_arrives_in_parts(client: openai.OpenAI, expected: np.ndarray) -> None:
    parts = []
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="pcm", extra_body=SAME
    ) as response:
        parts += [(time.monotonic(), part) for part in response.iter_bytes()]
    np.testing.assert_allclose(np.frombuffer(b"".join(p for _, p in parts), "<i2"), expected, atol=ROUNDING)
    assert len(parts) > 2
    assert parts[0][0] < parts[-1][0]


def test_a_text_of_more_tokens_than_the_model_takes_is_spoken(client: openai.OpenAI) -> None:
    speech = create(client, input="今天天气很好，我们去公园散步吧。" * 256, response_format="pcm")
    assert len(speech) == FRAMES * 1920 * 2


def test_events_of_the_openai_sdk(client: openai.OpenAI, expected: np.ndarray) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="pcm", stream_format="sse", extra_body=SAME
    ) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    *deltas, done = map(json.loads, lines)
    audio = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    np.testing.assert_allclose(np.frombuffer(audio, "<i2"), expected, atol=ROUNDING)
    assert done["usage"]["output_tokens"] == len(expected) // 1920


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"voice": "nobody"}, openai.NotFoundError, "voice"),
        ({"input": "   "}, openai.BadRequestError, "input"),
        ({"input": "<|im_end|>"}, openai.BadRequestError, "input"),
        ({"extra_body": {"language": "klingon"}}, openai.BadRequestError, "language"),
        ({"extra_body": {"max_new_tokens": 1_000_000}}, openai.BadRequestError, "max_new_tokens"),
        ({"extra_body": {"ref_audio": "AAAA"}}, openai.BadRequestError, "ref_audio"),
        ({"model": "whisper-1"}, openai.NotFoundError, "model"),
        (
            {"stream_format": "sse", "extra_body": {"timestamp_granularities": ["word"]}},
            openai.BadRequestError,
            "timestamp_granularities",
        ),
        ({"extra_body": {"response_format": "verbose_json"}}, openai.BadRequestError, "response_format"),
        ({"extra_body": {"word_timestamps": True}}, openai.BadRequestError, "word_timestamps"),
    ],
)
def test_an_error_names_the_field(
    client: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as raised:
        create(client, **fields)
    assert raised.value.param == param
    assert raised.value.request_id


def test_streamed_text_equals_that_of_grpc(gateway: RunningGateway, caller: Caller) -> None:
    pieces = ["These words ", "are spoken ", "as they come."]
    options = {"voice": "ryan", "response_format": "pcm", "stream_audio": True, **SAME}
    with connect(f"ws://{gateway.address}/v1/audio/speech/stream") as socket:
        for message in ({"type": "session.config", **options}, *({"type": "input.text", "text": p} for p in pieces)):
            socket.send(json.dumps(message))
        socket.send(json.dumps({"type": "input.done"}))
        audio = b""
        while not isinstance(received := socket.recv(timeout=30), str) or '"session.done"' not in received:
            audio += received if isinstance(received, bytes) else b""
    request = SpeechRequest("", speaker="ryan", seed=SEED, max_frames=FRAMES)
    chunks = speak(caller.stub, streamed(request, "qwen3_tts", iter(pieces)), Timeouts(120, 60))
    expected = np.concatenate([chunk.pcm for _, chunk in chunks])
    np.testing.assert_allclose(np.frombuffer(audio, "<i2"), expected, atol=ROUNDING)


def test_pipecat_speaks(gateway: RunningGateway) -> None:
    from pipecat.frames.frames import TTSAudioRawFrame, TTSSpeakFrame
    from pipecat.services.openai.tts import OpenAITTSService
    from pipecat.tests.utils import run_test

    async def run() -> list[Any]:
        settings = OpenAITTSService.Settings(voice="alloy")
        # Left open, it would close itself in whatever event loop runs when it is collected.
        async with openai.DefaultAsyncHttpxClient() as client:
            service = OpenAITTSService(
                api_key="none", base_url=f"{gateway.url}/v1", settings=settings, http_client=client
            )
            down, _ = await run_test(service, frames_to_send=[TTSSpeakFrame(TEXT)])
        return [frame for frame in down if isinstance(frame, TTSAudioRawFrame)]

    frames = asyncio.run(run())
    assert {frame.sample_rate for frame in frames} == {NATIVE_RATE}
    assert sum(len(frame.audio) for frame in frames) >= 1920 * 2


@pytest.mark.parametrize("name", ["mp3", "opus", "wav", "pcm", "flac", "aac"])
@pytest.mark.parametrize("model", ["gpt-4o-mini-tts", "tts-1"], ids=["events", "bytes"])
def test_livekit_speaks(gateway: RunningGateway, model: str, name: str) -> None:
    from livekit.plugins import openai as livekit_openai

    async def run() -> float:
        service = livekit_openai.TTS(
            model=model, voice="ash", base_url=f"{gateway.url}/v1", api_key="none", response_format=name
        )
        service.prewarm()
        async with service.synthesize(TEXT) as stream:
            frames = [event.frame async for event in stream]
        await service.aclose()
        return sum(frame.duration for frame in frames)

    # An utterance of random length has 80 ms or more; of FLAC, LiveKit's decoder leaves out 16 ms.
    assert asyncio.run(run()) > 0.06
