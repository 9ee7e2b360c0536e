import asyncio

import numpy as np
import pytest

from qwen3_tts_client.bench.openai_speech import OpenAITarget, speech_body
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import SpeechRequest
from qwen3_tts_client.stream import Responses, Timeouts

PCM = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm; rate=24000\r\n"
PATIENT = Timeouts()
CHUNKED = PCM + b"Transfer-Encoding: chunked\r\n\r\n"


def speak(*answer: bytes, hang: bool = False, timeouts: Timeouts = PATIENT) -> list[list[int]]:
    """Returns the samples of each received chunk; the server writes one part of `answer` every 20 ms."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in answer:
            writer.write(part)
            await asyncio.sleep(0.02)
        if hang:
            await reader.read()
        writer.close()

    async def run() -> list[list[int]]:
        async with await asyncio.start_server(serve, "localhost", 0) as server:
            port = server.sockets[0].getsockname()[1]
            target = OpenAITarget(f"localhost:{port}", "/v1/audio/speech", "m", {}, timeouts)
            return [
                chunk.pcm.tolist() async for _, chunk in await target.prepare(SpeechRequest("hello"), "id", Responses())
            ]

    return asyncio.run(run())


def test_yields_one_audio_chunk_per_http_chunk() -> None:
    assert speak(CHUNKED, b"4\r\n\1\0\2\0\r\n", b"2;x=y\r\n\3\0\r\n", b"0\r\n\r\n") == [[1, 2], [3]]


def test_joins_a_sample_split_across_http_chunks() -> None:
    assert speak(CHUNKED, b"3\r\n\1\0\2\r\n", b"1\r\n\0\r\n", b"2\r\n\3\0\r\n0\r\n\r\n") == [[1], [2], [3]]


def test_unchunked_body_ends_when_the_connection_closes() -> None:
    assert speak(PCM + b"\r\n", b"\1\0", b"\2\0") == [[1], [2]]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(400, "invalid"), (422, "invalid"), (429, "unavailable"), (503, "unavailable"), (500, "error")],
)
def test_maps_the_http_status_to_an_outcome(status: int, outcome: str) -> None:
    with pytest.raises(SpeechError, match=f"HTTP {status}: no room") as raised:
        speak(b"HTTP/1.1 %d X\r\nContent-Length: 7\r\n\r\nno room" % status)
    assert raised.value.outcome == outcome


@pytest.mark.parametrize(
    ("answer", "outcome", "message"),
    [
        (CHUNKED + b"4\r\n\1\0", "disconnected", "lost mid-stream"),
        (CHUNKED + b"2\r\n\1\0\r\n", "disconnected", "lost mid-stream"),
        (b"", "disconnected", "lost mid-stream"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "error", "not HTTP/1.1"),
        (CHUNKED + b"xyz\r\n", "error", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\n\r\nRIFF", "error", "the server sent audio/wav"),
    ],
)
def test_rejects_a_truncated_or_non_pcm_response(answer: bytes, outcome: str, message: str) -> None:
    with pytest.raises(SpeechError, match=message) as raised:
        speak(answer)
    assert raised.value.outcome == outcome


def test_times_out_when_no_further_chunk_arrives() -> None:
    with pytest.raises(SpeechError, match=r"no response for 0\.3 s") as raised:
        speak(CHUNKED, b"2\r\n\1\0\r\n", hang=True, timeouts=Timeouts(chunk_s=0.3))
    assert raised.value.outcome == "timeout"


def test_times_out_when_the_stream_does_not_end() -> None:
    drops = [b"2\r\n\1\0\r\n"] * 30
    with pytest.raises(SpeechError, match=r"did not end within 0\.2 s"):
        speak(CHUNKED, *drops, timeouts=Timeouts(stream_s=0.2))


def test_request_body_uses_openai_field_names() -> None:
    request = SpeechRequest("hello", speaker="vivian", instruct="softly", seed=3)
    assert speech_body(request, {"model": "m", "task_type": "CustomVoice"}) == {
        "input": "hello",
        "voice": "vivian",
        "instructions": "softly",
        "seed": 3,
        "response_format": "pcm",
        "stream": True,
        "stream_format": "audio",
        "model": "m",
        "task_type": "CustomVoice",
    }


def test_rejects_reference_audio_and_names_the_option_for_it() -> None:
    with pytest.raises(SpeechError, match="--extra-inputs"):
        speech_body(SpeechRequest("a", ref_audio=np.zeros(3, np.float32)), {})
