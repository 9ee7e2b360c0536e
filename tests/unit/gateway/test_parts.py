"""Texts up to the advertised limit, before a stub server with a smaller one of its own."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator

import httpx
import pytest

from qwen3_tts_client.pieces import TextFeed
from qwen3_tts_client.sentences import TextPart, split
from qwen3_tts_gateway.config import Settings
from qwen3_tts_gateway.sentences import DividedText
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer, input_text, text_of
from tests.unit.gateway.conftest import script, wait_for
from tests.unit.gateway.test_speech import PATH, error_of, post
from tests.unit.gateway.test_websocket import configure, kinds, open_socket, send, until_done

LIMIT = 1024
LONGEST = Settings().max_input_characters
FRAME_BYTES = 1920 * 2
SENTENCES = {
    "chinese": "今天天气很好，我们去公园散步吧。",
    "english": 'She said: "It is late." Then she left, quietly. ',
    "french": "Il est tard, n’est-ce pas ? Rentrons. ",
    "german": "Es ist spät; wir gehen nach Hause! ",
    "italian": "È tardi. Torniamo a casa, per favore. ",
    "japanese": "今日は良い天気ですね。散歩に行きましょう！",
    "korean": "오늘은 날씨가 좋네요. 산책하러 갑시다. ",
    "portuguese": "Já é tarde, não é? Vamos para casa. ",
    "russian": "Уже поздно, пойдём домой. Завтра продолжим… ",
    "spanish": "¿Es tarde? ¡Vámonos a casa! ",
}


@pytest.fixture
def strict() -> Iterator[StubServer]:
    with StubServer(frames=2) as server:
        server.servicer.max_characters = LIMIT
        yield server


@pytest.fixture
def client(strict: StubServer) -> Iterator[httpx.Client]:
    with RunningGateway(strict.url) as gateway, httpx.Client(base_url=gateway.url) as client:
        yield client


def spoken(stub: StubServer) -> list[str]:
    """The texts that the server did not refuse."""
    texts = [text_of(r) for r in stub.servicer.received if not input_text(r, "operation")]
    return [text for text in texts if len(text) <= LIMIT]


@pytest.mark.parametrize("language", SENTENCES)
def test_the_longest_text_is_spoken_in_whole_sentences(client: httpx.Client, strict: StubServer, language: str) -> None:
    sentence = SENTENCES[language]
    text = (sentence * (LONGEST // len(sentence) + 1))[:LONGEST]
    response = client.post(PATH, json={"input": text, "response_format": "pcm", "language": language})
    parts = spoken(strict)
    assert "".join(parts) == text
    assert len(response.content) == len(parts) * 2 * FRAME_BYTES
    assert all(part.rstrip(' ”"').endswith(tuple(".!?。！…")) for part in parts[:-1])


def test_a_text_without_sentences_or_words_is_spoken(client: httpx.Client, strict: StubServer) -> None:
    assert client.post(PATH, json={"input": "x" * LONGEST}).status_code == 200
    assert "".join(spoken(strict)) == "x" * LONGEST


def test_frames_of_all_parts_are_limited_and_counted(client: httpx.Client, strict: StubServer) -> None:
    body = {"input": "One. " * 800, "response_format": "pcm", "stream_format": "sse", "max_new_tokens": 3}
    response = client.post(PATH, json=body)
    done = json.loads(response.text.strip().splitlines()[-1].removeprefix("data: "))
    assert (len(spoken(strict)), done["usage"]["output_tokens"]) == (2, 4)  # the stub ignores the limit of one part


def test_items_of_a_batch_are_spoken_in_parts(client: httpx.Client, strict: StubServer) -> None:
    answer = client.post(f"{PATH}/batch", json={"items": [{"input": "One. " * 800}]}).json()
    assert (answer["succeeded"], len(spoken(strict)) > 3) == (1, True)


def test_a_failed_part_aborts_the_transfer(strict: StubServer, client: httpx.Client) -> None:
    failing = script(error="INTERNAL: broken")
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(PATH, json={"input": "One two. " * 100 + "\n" + failing + " " * LIMIT, "response_format": "pcm"})


def test_another_refusal_is_answered(client: httpx.Client) -> None:
    quoted = "x: 9 tokens, at most 1 are allowed"
    response = client.post(PATH, json={"input": script(error=f"INVALID_ARG: text: '{quoted}': is wrong")})
    assert (response.status_code, error_of(response)["param"]) == (400, "input")


def test_a_disconnect_cancels_the_part(strict: StubServer) -> None:
    strict.servicer.frames = 100
    with RunningGateway(strict.url) as gateway:
        with post(gateway, {"input": "One. " * 300, "response_format": "pcm"}) as connection:
            assert connection.recv(100)
        wait_for(lambda: strict.servicer.cancelled > 0)
        wait_for(lambda: gateway.services.backend.streams == 0)


async def divided(pieces: list[str]) -> list[str]:
    text = TextFeed()
    for piece in pieces:
        text.append(piece)
    text.end()
    return ["".join(part.pieces) async for part in DividedText(text)]


@pytest.mark.parametrize("language", SENTENCES)
@pytest.mark.parametrize("size", [1, 7, LONGEST])
def test_pieces_are_divided_after_sentences_wherever_they_are_cut(language: str, size: int) -> None:
    text = (SENTENCES[language] * LONGEST)[:LONGEST]
    parts = asyncio.run(divided([text[start : start + size] for start in range(0, len(text), size)]))
    assert without_space("".join(parts)) == without_space(text)
    assert len(parts) > 1
    assert all(part.rstrip(' ”"').endswith(tuple(".!?。！…")) for part in parts[:-1])
    # Each letter in ASCII as half a token, any other character as at least one.
    assert all(sum(0.5 if c.isascii() and (c.isalpha() or c == " ") else 1 for c in part) <= LIMIT for part in parts)


@pytest.mark.parametrize("text", ["7" * LONGEST, "好" * LONGEST])
def test_pieces_without_an_end_are_divided(text: str) -> None:
    parts = asyncio.run(divided([text]))
    assert "".join(parts) == text
    assert max(map(len, parts)) <= 1000


@pytest.mark.parametrize(
    ("pieces", "parts"),
    [
        (["Hello ", "there."], ["Hello there."]),
        (["好" * 400 + "。", "\n", "\n完"], ["好" * 400 + "。", "完"]),
        (["好" * 400 + "。", " \n"], ["好" * 400 + "。", ""]),
        ([], [""]),
    ],
)
def test_white_space_is_no_part(pieces: list[str], parts: list[str]) -> None:
    assert asyncio.run(divided(pieces)) == parts


def without_space(text: str) -> str:
    return "".join(text.split())


def test_the_longest_streamed_text_is_spoken_as_one_utterance(strict: StubServer) -> None:
    text = (SENTENCES["chinese"] * LONGEST)[:LONGEST]
    with RunningGateway(strict.url) as gateway, open_socket(gateway) as socket:
        configure(socket)
        for start in range(0, LONGEST, 500):
            send(socket, "input.text", text=text[start : start + 500])
        send(socket, "input.done")
        messages, audio = until_done(socket)
    assert kinds(messages) == ["audio.start", "audio.done", "session.done"]
    texts: dict[int, str] = defaultdict(str)
    for request in strict.servicer.received:
        if not input_text(request, "operation"):
            texts[request.parameters["sequence_id"].int64_param] += text_of(request)
    assert "".join(texts.values()) == text
    assert max(map(len, texts.values())) <= LIMIT
    assert len(audio) == len(texts) * 2 * FRAME_BYTES
    assert messages[1]["usage"]["output_tokens"] == len(texts) * 2


@pytest.mark.parametrize(
    ("text", "size", "parts"),
    [
        ("One. Two. Three.", 10, ["One. Two. ", "Three."]),
        ("one, two three", 9, ["one, ", "two three"]),
        ("one two three", 9, ["one two ", "three"]),
        ("abcdef", 4, ["abcd", "ef"]),
        ("a.   \n  ", 5, ["a.   "]),
    ],
)
def test_parts_end_with_the_largest_unit(text: str, size: int, parts: list[str]) -> None:
    found = split(TextPart(3, text), size)
    assert [part.text for part in found] == parts
    assert all(text[part.start - 3 :].startswith(part.text) for part in found)
