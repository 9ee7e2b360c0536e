"""`qwen3-tts wyoming` in front of a tritonserver, called by the client of the package wyoming."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from wyoming.audio import AudioChunk
from wyoming.client import AsyncClient
from wyoming.info import Describe, Info
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from scripts.server.ports import Ports
from scripts.server.tritonserver import TritonServer
from tests.e2e.serving import Caller
from tests.subprocesses import same_imports

TEXT = "Good evening, everyone."
RYAN = SynthesizeVoice(name="ryan")


@pytest.fixture
def uri(scripted: TritonServer) -> Iterator[str]:
    uri = f"tcp://127.0.0.1:{Ports.free().http}"
    command = [sys.executable, "-m", "qwen3_tts_client", "wyoming", "--uri", uri]
    command += ["--url", f"localhost:{scripted.ports.grpc}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=same_imports())
    try:
        assert process.stderr is not None
        assert uri in process.stderr.readline().decode()
        yield uri
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_home_assistant_hears_what_grpc_gives(uri: str, caller: Caller) -> None:
    async def converse() -> list[np.ndarray]:
        async with AsyncClient.from_uri(uri, read_timeout=60) as client:
            await client.write_event(Describe().event())
            event = await client.read_event()
            assert event is not None
            assert "ryan" in {voice.name for voice in Info.from_event(event).tts[0].voices}
            await client.write_event(Synthesize(TEXT, RYAN).event())
            whole = await hear(client, "audio-stop")
            await client.write_event(SynthesizeStart(RYAN).event())
            for word in ("Good ", "evening, ", "everyone."):
                await client.write_event(SynthesizeChunk(word).event())
            await client.write_event(SynthesizeStop().event())
            return [whole, await hear(client, SynthesizeStopped().event().type)]

    whole, streamed = asyncio.run(converse())
    expected = caller.speak(TEXT).samples
    # The protocol has no seed: samples differ, but not the number of frames that the text asks for.
    assert len(whole) == len(expected) > 1920
    assert len(streamed) == len(expected)


async def hear(client: AsyncClient, last: str) -> np.ndarray:
    audio = b""
    while (event := await client.read_event()) is not None and event.type != last:
        audio += AudioChunk.from_event(event).audio if AudioChunk.is_type(event.type) else b""
    return np.frombuffer(audio, "<i2")
