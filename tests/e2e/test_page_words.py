"""The page at / in a headless Chromium marks the word that is heard, in front of a stub server that tells words."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.browser import Browser
from tests.e2e.test_page import AXE, OVERLAPS, VIOLATIONS
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import input_text
from tests.fakes.word_server import WORD_SAMPLES, WordServer

pytestmark = pytest.mark.long

TEXT = "Good 🌞 morning, “you” are heard word by word."
# Each change of the marked word, with the samples that the loudspeaker has got.
WATCH = """
    window.marks = [];
    new MutationObserver(() => {
        const word = document.querySelector("#spoken mark")?.textContent;
        if (word !== marks.at(-1)?.[0]) marks.push([word, heard.length * 128]);
    }).observe(document.querySelector("#spoken"), { childList: true, characterData: true, subtree: true });
"""
FIRST_SOUND = "return heard.flatMap((block) => [...block]).findIndex((sample) => sample !== 0)"
LATE_SAMPLES = 24_000 * 0.15  # reports of the player come every 43 ms, and take the latency of the loudspeaker in


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def words() -> Iterator[WordServer]:
    with WordServer() as server:
        yield server


@pytest.fixture
def gateway(words: WordServer) -> Iterator[RunningGateway]:
    with RunningGateway(words.url) as gateway:
        yield gateway


def speak(browser: Browser, text: str, is_typed: bool) -> None:
    if is_typed:
        browser.click("live")
        # Keys cannot type every character.
        browser.run("document.getElementById('words').value = arguments[0]", text)
        browser.type("words", "\n")
    else:
        browser.run("document.getElementById('text').value = arguments[0]", text)
        browser.click("speak")


@pytest.mark.timing
@pytest.mark.parametrize("is_typed", [False, True], ids=["text", "typed"])
def test_the_word_that_is_heard_is_marked(browser: Browser, gateway: RunningGateway, is_typed: bool) -> None:
    """All words arrive at once, long before they are heard."""
    browser.open_tapped(gateway.url)
    browser.run(WATCH)
    speak(browser, TEXT, is_typed)
    browser.until(lambda: browser.text("status").startswith("Heard"))
    marks = browser.run("return marks")
    begun = [(word, samples) for word, samples in marks if word]
    assert [word for word, _ in begun] == TEXT.split()
    first = browser.run(FIRST_SOUND)
    late = [samples - first - index * WORD_SAMPLES for index, (_, samples) in enumerate(begun)]
    assert all(-128 <= samples <= LATE_SAMPLES for samples in late), late
    assert marks[-1][0] is None
    assert browser.text("spoken") == TEXT
    assert browser.messages() == []


def test_a_word_of_unknown_time_is_not_marked(browser: Browser, gateway: RunningGateway, words: WordServer) -> None:
    words.servicer.unknown = {"morning,"}
    browser.open_tapped(gateway.url)
    browser.run(WATCH)
    speak(browser, TEXT, is_typed=False)
    browser.until(lambda: browser.text("status").startswith("Heard"))
    marked = [word for word, _ in browser.run("return marks") if word]
    assert marked == [word for word in TEXT.split() if word != "morning,"]


@pytest.mark.parametrize("is_typed", [False, True], ids=["text", "typed"])
def test_a_checkpoint_without_word_times_speaks(
    browser: Browser, gateway: RunningGateway, words: WordServer, is_typed: bool
) -> None:
    words.servicer.has_heads = False
    browser.open(gateway.url)
    for _ in range(2):
        speak(browser, "Good morning.", is_typed)
        browser.until(lambda: browser.text("status").startswith("Heard"))
        assert (browser.text("alert"), browser.element("spoken").is_displayed()) == ("", False)
        browser.run("document.getElementById('live').checked && document.getElementById('live').click()")
        browser.run("document.getElementById('status').textContent = ''")
    begun = [request for request in words.servicer.received if input_text(request, "speaker")]
    asked = ["word_times" in [tensor.name for tensor in request.inputs] for request in begun]
    assert asked == [True, False, False], "asks once"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_while_a_word_is_marked(
    browser: Browser, gateway: RunningGateway, words: WordServer, width: int, scheme: str
) -> None:
    words.servicer.hangs_after = 20
    with browser.screen(width, scheme):
        browser.open(gateway.url)
        browser.run(AXE)
        browser.run("document.getElementById('text').value = arguments[0]", "Word by word. " * 99)
        browser.click("speak")
        marked: dict[str, Any] = {}
        browser.until(
            lambda: marked.update(word=browser.run("return document.querySelector('#spoken mark')")) or marked["word"]
        )
        assert browser.run(VIOLATIONS) == []
        assert browser.run(OVERLAPS) == []
        browser.click("stop")
