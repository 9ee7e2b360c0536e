"""The page at / in a headless Chromium plays the samples that a real tritonserver sends over gRPC."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qwen3_tts_client.protocol import SpeechRequest
from qwen3_tts_client.say import streamed
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_client.sync_stream import speak
from scripts.server.tritonserver import TritonServer
from tests.e2e.browser import Browser, trimmed
from tests.e2e.serving import Caller, eventually, serve, serve_speech
from tests.fakes.gateway import RunningGateway

pytestmark = pytest.mark.long

TEXT = "Hello there, how are you?"
SEED = 17  # one with which the talker ends after two seconds
ROUNDING = 4  # of the codec, which depends on how a stream is cut into chunks
MIN_GAP = 64  # samples of silence: an underrun, in a voice that is never silent
FREED_SECONDS = 0.2


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(
    browser: Browser, tiny_code2wav: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    with serve_speech(tiny_code2wav, tiny_checkpoint, tmp_path_factory.mktemp("server")) as server:
        yield server


def listen(browser: Browser, server: TritonServer, is_typed: bool) -> np.ndarray:
    """What the loudspeaker gets."""
    with RunningGateway(f"localhost:{server.ports.grpc}") as gateway:
        browser.open_tapped(gateway.url)
        browser.choose("voice", "ryan")
        browser.fill("seed", str(SEED))
        if is_typed:
            browser.click("live")
            browser.type("words", f"{TEXT}\n")
        else:
            browser.fill("text", TEXT)
            browser.click("speak")
        browser.until(lambda: browser.text("status").startswith("Heard"), 60)
        figures = {name: browser.text(name) for name in ("first-audio", "first-sound", "length", "underruns")}
        print(", ".join(f"{name} {value}" for name, value in figures.items()))
        return browser.heard()


def test_the_page_plays_what_grpc_gives(browser: Browser, server: TritonServer) -> None:
    with Caller(server) as caller:
        expected = caller.speak(TEXT, seed=SEED).samples
    compare(listen(browser, server, is_typed=False), expected)


def test_typed_words_sound_as_over_grpc(browser: Browser, server: TritonServer) -> None:
    pieces = ["Hello ", "there,", " ", "how ", "are ", "you?"]
    request = SpeechRequest("", speaker="ryan", seed=SEED)
    with Caller(server) as caller:
        chunks = speak(caller.stub, streamed(request, "qwen3_tts", iter(pieces)), Timeouts(120, 60))
        expected = np.concatenate([chunk.pcm for _, chunk in chunks])
    compare(listen(browser, server, is_typed=True), expected)


def compare(heard: np.ndarray, expected: np.ndarray) -> None:
    heard, expected = without_gaps(heard), without_gaps(trimmed(expected))
    assert len(expected) > 24_000
    np.testing.assert_allclose(heard, expected, atol=ROUNDING)


def without_gaps(samples: np.ndarray) -> np.ndarray:
    """A loaded machine may stall the player."""
    edges = np.flatnonzero(np.diff(np.concatenate([[1], samples != 0, [1]]).astype(int)))
    silent = np.zeros(len(samples), bool)
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        silent[start:end] = end - start >= MIN_GAP
    return samples[~silent]


@pytest.fixture
def single(
    browser: Browser,
    scripted_repository: Path,
    scripted_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonServer]:
    """Has one slot, and refuses a second stream."""
    environment = scripted_environment | {"QWEN3_TTS_MAX_STREAMS": "1", "QWEN3_TTS_OVERLOAD": "refuse"}
    with serve(scripted_repository, tmp_path_factory.mktemp("server"), environment) as server:
        yield server


@pytest.mark.timing
@pytest.mark.parametrize("is_typed", [False, True], ids=["text", "words"])
def test_stop_frees_the_slot(browser: Browser, single: TritonServer, is_typed: bool) -> None:
    with RunningGateway(f"localhost:{single.ports.grpc}") as gateway, Caller(single) as caller:
        browser.open(gateway.url)
        if is_typed:
            browser.click("live")
        browser.type("words" if is_typed else "text", "Hello there. " * 20)
        if not is_typed:
            browser.click("speak")
        browser.until(lambda: browser.text("status") == "Speaking")
        assert "busy" in str(caller.speak(max_frames=1).error)
        browser.click("stop")
        stopped_s = time.monotonic()
        eventually(lambda: caller.speak(max_frames=1).error is None, FREED_SECONDS)
        print(f"another stream had spoken {1e3 * (time.monotonic() - stopped_s):.0f} ms later")
