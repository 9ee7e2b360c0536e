"""Word times through the gateway, in front of a real tritonserver with the demo voice."""

import asyncio
import base64
import io
import json
import re
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import openai
import pytest
from websockets.sync.client import connect

from qwen3_tts_client.__main__ import main
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.benchmarks.word_times import align
from scripts.server.tritonserver import TritonServer
from tests.e2e.browser import Browser
from tests.e2e.serving import Caller, eventually, repository_with, serve
from tests.e2e.test_page_words import FIRST_SOUND, LATE_SAMPLES, WATCH
from tests.fakes.gateway import RunningGateway
from tests.unit.client.test_subtitles import parsed

TEXT = "Your parcel was delivered this morning, and left with your neighbour at number twelve."
FIELDS: dict[str, Any] = {"voice": "vivian", "language": "english", "seed": 3}
FRAME_S = 0.08
RATE = 24_000
MAX_TEXT_TOKENS = 64


@pytest.fixture(scope="module")
def server(exported_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("server")
    environment = {"QWEN3_TTS_CHECKPOINT": str(CHECKPOINT), "QWEN3_TTS_MAX_TEXT_TOKENS": str(MAX_TEXT_TOKENS)}
    with serve(repository_with(exported_demo, folder), folder, environment) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server: TritonServer) -> Iterator[RunningGateway]:
    with RunningGateway(f"localhost:{server.ports.grpc}") as gateway:
        yield gateway


def verbose(gateway: RunningGateway, text: str = TEXT, **fields: Any) -> tuple[dict[str, Any], np.ndarray]:
    body = {"input": text, "response_format": "verbose_json", **FIELDS, **fields}
    response = httpx.post(f"{gateway.url}/v1/audio/speech", json=body, timeout=120)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    with wave.open(io.BytesIO(base64.b64decode(answer["audio"]))) as file:
        return answer, np.frombuffer(file.readframes(file.getnframes()), "<i2")


def check(words: list[dict[str, Any]], text: str, duration_s: float) -> None:
    assert [word["word"] for word in words] == text.split()
    assert [text[word["first"] : word["last"] + 1] for word in words] == text.split()
    times = [time for word in words for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert times[-1] <= duration_s + 0.05


def test_words_begin_where_a_recogniser_hears_them(gateway: RunningGateway) -> None:
    answer, samples = verbose(gateway)
    check(answer["words"], TEXT, answer["duration"])
    assert answer["spoken_share"] == 1.0
    aligned = align(TEXT, samples)
    assert aligned is not None
    starts = [start / RATE for start, _ in aligned]
    errors = [abs(word["start"] - start) for word, start in zip(answer["words"], starts, strict=True)][1:]
    assert np.median(errors) <= FRAME_S


def test_times_scale_with_the_speed(gateway: RunningGateway) -> None:
    (normal, _), (fast, _) = (verbose(gateway, speed=speed) for speed in (1.0, 1.6))
    check(fast["words"], TEXT, fast["duration"])
    for one, other in zip(normal["words"], fast["words"], strict=True):
        assert other["start"] == pytest.approx(one["start"] / 1.6, abs=2e-3)


def test_events_of_the_openai_sdk_have_words(gateway: RunningGateway) -> None:
    answer, samples = verbose(gateway)
    extra = {"language": "english", "seed": 3, "timestamp_granularities": ["word"]}
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
        client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="vivian", input=TEXT, response_format="pcm", stream_format="sse", extra_body=extra
        ) as response,
    ):
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    received, told = 0, {}
    for event in events:
        for word in event.get("words", []):
            assert word["start"] >= 0
            told[word["index"]] = word
        received += len(base64.b64decode(event.get("audio", "")))
    assert received == 2 * len(samples)
    assert list(told.values()) == answer["words"]


def test_parts_of_the_gateway_have_words_of_the_whole_text(gateway: RunningGateway, server: TritonServer) -> None:
    text = "Your order left the warehouse this morning, and it should be with you by Friday. " * 5
    with Caller(server) as caller:
        assert f"at most {MAX_TEXT_TOKENS} are allowed" in str(caller.speak(text).error)
    answer, _ = verbose(gateway, text)
    check(answer["words"], text, answer["duration"])
    assert answer["spoken_share"] == pytest.approx(1.0)


def test_a_barge_in_frees_the_stream_and_says_what_was_heard(gateway: RunningGateway, server: TritonServer) -> None:
    config = {"type": "session.config", "response_format": "pcm", "stream_audio": True, **FIELDS}
    config["timestamp_granularities"] = ["word"]
    with connect(f"ws://{gateway.address}/v1/audio/speech/stream") as socket:
        for message in (config, {"type": "input.text", "text": TEXT + " " + TEXT}, {"type": "input.done"}):
            socket.send(json.dumps(message))
        words: dict[int, dict[str, Any]] = {}
        while len(words) < 6:
            received = socket.recv(timeout=60)
            if isinstance(received, str):
                words |= {word["index"]: word for word in json.loads(received).get("words", [])}
        played_ms = 1000 * (words[3]["start"] + FRAME_S / 2)
        socket.send(json.dumps({"type": "input.cancel", "played_ms": played_ms}))
        while not isinstance(received := socket.recv(timeout=60), str) or '"audio.heard"' not in received:
            pass
        heard = json.loads(received)
    assert heard["heard_text"] == TEXT[: words[3]["last"] + 1] == "Your parcel was delivered"
    assert heard["heard_characters"] == len(heard["heard_text"])
    eventually(lambda: gateway.services.backend.streams == 0, 5)
    with Caller(server) as caller:
        assert caller.speak("Hello.", max_frames=2).error is None


def test_pipecat_receives_word_times(gateway: RunningGateway) -> None:
    """CartesiaTTSService as it is on PyPI."""
    from pipecat.frames.frames import (
        LLMFullResponseEndFrame,
        LLMFullResponseStartFrame,
        LLMTextFrame,
        TTSAudioRawFrame,
        TTSTextFrame,
    )
    from pipecat.services.cartesia.tts import CartesiaTTSService
    from pipecat.tests.utils import run_test

    sentences = f"{TEXT} Thanks for calling."

    async def run() -> list[Any]:
        settings = CartesiaTTSService.Settings(voice="vivian", model="sonic-3")
        url = f"ws://{gateway.address}/tts/websocket"
        service = CartesiaTTSService(api_key="none", url=url, settings=settings, sample_rate=RATE)
        pieces = [LLMTextFrame(piece) for piece in re.findall(r"\s*\S+", sentences)]
        reply = [LLMFullResponseStartFrame(), *pieces, LLMFullResponseEndFrame()]
        down, up = await run_test(service, frames_to_send=reply)
        assert not [frame for frame in up if "error" in type(frame).__name__.lower()]
        return list(down)

    frames = asyncio.run(run())
    heard = [frame for frame in frames if isinstance(frame, TTSTextFrame)]
    assert " ".join(frame.text for frame in heard) == sentences
    duration_s = sum(len(frame.audio) for frame in frames if isinstance(frame, TTSAudioRawFrame)) / 2 / RATE
    starts_ns = [frame.pts or 0 for frame in heard]
    starts_s = [(start - starts_ns[0]) / 1e9 for start in starts_ns]
    assert starts_s == sorted(starts_s)
    assert 0.5 * duration_s < starts_s[-1] < duration_s
    assert len(set(starts_s)) == len(starts_s)


def test_livekit_receives_word_times(gateway: RunningGateway) -> None:
    """livekit-plugins-cartesia as it is on PyPI."""
    from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
    from livekit.plugins import cartesia

    async def run() -> tuple[list[Any], float, float]:
        async with aiohttp.ClientSession() as session:
            service = cartesia.TTS(api_key="none", voice="vivian", base_url=gateway.url, http_session=session)
            words, duration_s = [], 0.0
            async with service.stream() as stream:
                stream.push_text(TEXT)
                stream.end_input()
                async for event in stream:
                    duration_s += event.frame.duration
                    words += event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])
            async with service.synthesize(TEXT) as whole:
                whole_s = sum([event.frame.duration async for event in whole])
            await service.aclose()
            return words, duration_s, whole_s

    words, duration_s, whole_s = asyncio.run(run())
    assert whole_s == pytest.approx(duration_s, rel=0.3)
    assert "".join(words).strip() == TEXT
    assert [word.strip() for word in words] == TEXT.split()
    times = [time for word in words for time in (word.start_time, word.end_time)]
    assert times == sorted(times)
    assert 0.5 * duration_s < times[-1] <= duration_s + FRAME_S


def test_say_writes_subtitles(server: TritonServer, tmp_path: Path) -> None:
    path, speech = tmp_path / "speech.vtt", tmp_path / "speech.wav"
    arguments = ["--speaker", "vivian", "--language", "english", "--seed", "3", "--output", str(speech)]
    url = f"localhost:{server.ports.grpc}"
    assert main(["say", "--url", url, TEXT, "--subtitles", str(path), *arguments]) == 0
    cues = parsed(path.read_text(), ".vtt")
    assert " ".join(line for *_, lines in cues for line in lines) == TEXT
    with wave.open(str(speech)) as file:
        assert cues[-1][1] <= 1000 * file.getnframes() / RATE


@pytest.mark.long
@pytest.mark.timing
def test_the_page_marks_the_word_that_is_heard(gateway: RunningGateway) -> None:
    answer, samples = verbose(gateway)
    with Browser() as browser:
        browser.open_tapped(gateway.url)
        browser.run(WATCH)
        browser.choose("voice", "vivian")
        browser.choose("language", "english")
        browser.fill("seed", "3")
        browser.fill("text", TEXT)
        browser.click("speak")
        browser.until(lambda: browser.text("status").startswith("Heard"), 60)
        marks = [(word, heard) for word, heard in browser.run("return marks") if word]
        first = browser.run(FIRST_SOUND) - int(np.flatnonzero(samples)[0])
    assert [word for word, _ in marks] == TEXT.split()
    late = [heard - first - RATE * word["start"] for (_, heard), word in zip(marks, answer["words"], strict=True)]
    assert np.median(late) <= LATE_SAMPLES
    assert min(late) >= -128
