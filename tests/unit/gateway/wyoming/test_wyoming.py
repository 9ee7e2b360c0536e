"""The Wyoming server in front of a stub server, called by the client of the package wyoming."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.server import AsyncServer
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeTextFormat,
    SynthesizeVoice,
)

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.server import Server
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_gateway.wyoming.handler import SpeechHandler
from qwen3_tts_gateway.wyoming.voice_server import VoiceServer
from tests.fakes.stub_server import Script, StubServer, input_text
from tests.unit.gateway.conftest import script

RYAN = SynthesizeVoice(name="ryan")
READ_SECONDS = 10
SPOKEN = ["audio-start", "audio-chunk", "audio-chunk", "audio-chunk", "audio-stop"]
Conversation = Callable[[AsyncClient], Coroutine[Any, Any, Any]]


@asynccontextmanager
async def connection(stub: StubServer, folder: Path, **defaults: Any) -> AsyncIterator[AsyncClient]:
    uri = f"unix://{folder / 'socket'}"
    listener = AsyncServer.from_uri(uri)
    with Server(stub.url, "qwen3_tts") as server:
        voice_server = VoiceServer(server, Timeouts(20, 10), defaults.get("voice"), defaults.get("instruct"))
        await listener.start(functools.partial(SpeechHandler, voice_server))
        client = AsyncClient.from_uri(uri, read_timeout=READ_SECONDS)
        async with client:
            yield client
        await listener.stop()
        await voice_server.close()


def converse(conversation: Conversation, folder: Path, stub: StubServer, **defaults: Any) -> Any:
    async def run() -> Any:
        async with connection(stub, folder, **defaults) as client:
            return await conversation(client)

    return asyncio.run(run())


async def until(client: AsyncClient, kind: type[Any]) -> list[Event]:
    """Events up to one of `kind`, or to the end of the connection."""
    events: list[Event] = []
    while (event := await client.read_event()) is not None:
        events.append(event)
        if kind.is_type(event.type):
            break
    return events


async def describe(client: AsyncClient) -> Info:
    await client.write_event(Describe().event())
    [event] = await until(client, Info)
    return Info.from_event(event)


async def say(client: AsyncClient, event: Synthesize) -> list[Event]:
    await client.write_event(event.event())
    return await until(client, AudioStop)


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def fields(stub: StubServer) -> dict[str, str]:
    """Tensors of the last utterance."""
    names = ("text", "speaker", "voice", "language", "instruct")
    request = [r for r in stub.servicer.received if not input_text(r, "operation")][-1]
    return {name: value for name in names if (value := input_text(request, name))}


@pytest.fixture
def stub() -> Any:
    with StubServer(frames=3) as stub:
        yield stub


def test_speakers_and_languages_are_described(stub: StubServer, tmp_path: Path) -> None:
    [program] = converse(describe, tmp_path, stub).tts
    assert program.supports_synthesize_streaming
    assert "ryan" in {voice.name for voice in program.voices}
    assert {"en", "zh", "de"} <= set(program.voices[0].languages)


def test_a_fine_tuned_checkpoint_is_described_with_its_own_speakers(stub: StubServer, tmp_path: Path) -> None:
    stub.servicer.speakers = ["MyVoice"]
    [voice] = converse(describe, tmp_path, stub).tts[0].voices
    assert (voice.name, voice.description) == ("MyVoice", "MyVoice")


def test_registered_voices_are_described_as_they_come(tmp_path: Path) -> None:
    async def twice(client: AsyncClient) -> list[list[str]]:
        before = (await describe(client)).tts[0].voices
        assert base.servicer.voices is not None
        base.servicer.voices["anna"] = {"name": "anna", "created": "2026-11-23T00:00:00+00:00"}
        after = (await describe(client)).tts[0].voices
        await say(client, Synthesize("Hello."))
        return [[voice.name for voice in voices] for voices in (before, after)]

    with StubServer(frames=1, voices={}) as base:
        assert converse(twice, tmp_path, base) == [[], ["anna"]]
        assert fields(base) == {"text": "Hello.", "voice": "anna"}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (RYAN, {"speaker": "ryan"}),
        (SynthesizeVoice(language="de-AT"), {"speaker": "sohee", "language": "german"}),
        (SynthesizeVoice(language="tlh"), {"speaker": "sohee"}),
        (None, {"speaker": "sohee"}),
    ],
)
def test_a_text_is_spoken(
    stub: StubServer, tmp_path: Path, chosen: SynthesizeVoice | None, expected: dict[str, str]
) -> None:
    event = Synthesize("Hello.", chosen)
    events = converse(lambda c: say(c, event), tmp_path, stub, voice="sohee", instruct="calm")
    assert kinds(events) == SPOKEN
    assert fields(stub) == {"text": "Hello.", "instruct": "calm"} | expected
    start = AudioStart.from_event(events[0])
    assert (start.rate, start.width, start.channels) == (24_000, 2, 1)
    audio = b"".join(AudioChunk.from_event(event).audio for event in events[1:-1])
    np.testing.assert_array_equal(np.frombuffer(audio, "<i2"), np.concatenate(Script.of("", frames=3).pcm()))


def test_streamed_text_is_spoken_while_it_arrives(stub: StubServer, tmp_path: Path) -> None:
    async def stream(client: AsyncClient) -> list[Event]:
        await client.write_event(SynthesizeStart(RYAN).event())
        await client.write_event(SynthesizeChunk("These words ").event())
        first = await until(client, AudioChunk)
        for event in (SynthesizeChunk(""), SynthesizeChunk("come."), Synthesize("These words come."), SynthesizeStop()):
            await client.write_event(event.event())
        return first + await until(client, SynthesizeStopped)

    events = converse(stream, tmp_path, stub)
    assert kinds(events) == [*SPOKEN, "synthesize-stopped"]
    spoken = [r for r in stub.servicer.received if not input_text(r, "operation")]
    assert [input_text(r, "text") for r in spoken] == ["These words ", "come.", ""]


def test_an_empty_stream_and_two_texts_at_once(stub: StubServer, tmp_path: Path) -> None:
    async def several(client: AsyncClient) -> list[Event]:
        for event in (SynthesizeStart(RYAN), SynthesizeStop(), Synthesize("One."), Synthesize("Two.")):
            await client.write_event(event.event())
        return [event for _ in range(2) for event in await until(client, AudioStop)]

    assert kinds(converse(several, tmp_path, stub)) == ["synthesize-stopped", *SPOKEN, *SPOKEN]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (Synthesize(script(error="INVALID_ARG: text: empty")), "invalid"),
        (Synthesize(script(chunks=[[0, 1]], error="INTERNAL: the codec failed")), "error"),
        (Synthesize("<speak/>", text_format=SynthesizeTextFormat.SSML), "invalid"),
    ],
)
def test_an_error_closes_the_connection_without_audio_stop(
    stub: StubServer, tmp_path: Path, event: Synthesize, code: str
) -> None:
    events = converse(lambda client: say(client, event), tmp_path, stub)
    assert Error.from_event(events[-1]).code == code
    assert "audio-stop" not in kinds(events)


def test_a_malformed_event_closes_the_connection(stub: StubServer, tmp_path: Path) -> None:
    async def malformed(client: AsyncClient) -> list[Event]:
        await client.write_event(Event("synthesize", {}))
        return await until(client, AudioStop)

    assert kinds(converse(malformed, tmp_path, stub)) == ["error"]


def test_a_client_that_leaves_cancels_its_stream(stub: StubServer, tmp_path: Path) -> None:
    async def leave(client: AsyncClient) -> None:
        await client.write_event(Synthesize(script(chunks=[[0, 1]], hang=True)).event())
        await until(client, AudioChunk)
        await client.disconnect()
        for _ in range(200):
            if stub.servicer.cancelled:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the stream runs 200 ms after the client has left")

    async def run() -> None:
        async with connection(stub, tmp_path) as client:
            await leave(client)

    asyncio.run(run())


def test_a_server_that_is_down_is_an_error(tmp_path: Path) -> None:
    async def refused(client: AsyncClient) -> list[Event]:
        await client.write_event(Describe().event())
        return await until(client, Info)

    with StubServer() as stub:
        pass
    [event] = converse(refused, tmp_path, stub)
    error = Error.from_event(event)
    assert (error.code, error.text) == ("disconnected", "no server is reachable")


@pytest.mark.parametrize("uri", ["10200", "stdio://", "tcp://localhost", "tcp://256.0.0.1:99999"])
def test_a_wrong_address_is_one_line(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wyoming", "--uri", uri]) != 0
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"qwen3-tts wyoming: --uri {uri}: ")
