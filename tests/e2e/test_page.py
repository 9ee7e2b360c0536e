"""The page at / in a headless Chromium, in front of a stub server."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from qwen3_tts_gateway.access import KEYS_VARIABLE, new_key
from tests.e2e.browser import INSECURE_HOST, Browser, trimmed
from tests.e2e.serving import eventually
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import AMPLITUDE, StubServer, input_text

pytestmark = pytest.mark.long

FRAMES = 40
FADE_SAMPLES = 120
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
VIOLATIONS = """
    return axe.run().then(({ violations }) => violations.flatMap(({ id, nodes }) =>
        nodes.map(({ html, failureSummary }) => `${id}: ${html}: ${failureSummary}`)));
"""
# Pairs of visible texts and controls, neither of which contains the other.
OVERLAPS = """
    const parts = [...document.querySelectorAll("label, input, select, textarea, button, dt, dd, h1, .hint, .sheet")]
        .filter((part) => part.checkVisibility()).map((part) => [part, part.getBoundingClientRect()]);
    const overlap = (x, y) => x.left < y.right && y.left < x.right && x.top < y.bottom && y.top < x.bottom;
    return parts.flatMap(([a, x], i) => parts.slice(i + 1)
        .filter(([b, y]) => !a.contains(b) && overlap(x, y)).map(([b]) => `${a.outerHTML} ${b.outerHTML}`));
"""
# What a person reaches with the Tab key, in this order, before anything has been spoken.
FOCUS_ORDER = ["live", "text", "voice", "language", "seed", "style", "speak"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer(frames=FRAMES) as stub:
        yield stub


@pytest.fixture
def gateway(stub: StubServer) -> Iterator[RunningGateway]:
    with RunningGateway(stub.url) as gateway:
        yield gateway


@pytest.fixture
def page(browser: Browser, gateway: RunningGateway) -> Browser:
    browser.open(gateway.url)
    return browser


def spoken(stub: StubServer) -> list[Any]:
    return [request for request in stub.servicer.received if not input_text(request, "operation")]


def test_a_text_is_spoken_as_chosen(page: Browser, stub: StubServer) -> None:
    page.fill("text", "Good morning.")
    page.choose("voice", "ono_anna")
    page.choose("language", "japanese")
    page.type("seed", "7")
    page.type("style", "whispering")
    page.click("speak")
    page.until(lambda: page.text("status") == "Speaking")
    assert page.element("stop").is_enabled()
    page.until(lambda: page.text("status").startswith("Heard"))
    [request] = spoken(stub)
    assert {name: input_text(request, name) for name in ("text", "speaker", "language", "instruct")} == {
        "text": "Good morning.",
        "speaker": "ono_anna",
        "language": "japanese",
        "instruct": "whispering",
    }
    assert page.text("length") == "3.2 s"
    for figure in ("first-audio", "first-sound"):
        assert 0 < int(page.text(figure).removesuffix(" ms")) < 2000
    assert page.messages() == []


def test_stop_cancels_with_a_fade(browser: Browser, gateway: RunningGateway, stub: StubServer) -> None:
    browser.open_tapped(gateway.url)
    browser.fill("text", json.dumps({"chunks": [[20, FRAMES]], "hang": True}))
    browser.click("speak")
    browser.until(lambda: browser.text("status") == "Speaking")
    browser.type("text", "\ue00c")  # Escape
    eventually(lambda: stub.servicer.cancelled == 1, 2)
    assert browser.text("status") == "Stopped"
    heard = browser.heard()
    assert FADE_SAMPLES < len(heard) < FRAMES * 1920
    fade = AMPLITUDE * (1 - np.arange(1, FADE_SAMPLES) / FADE_SAMPLES)
    np.testing.assert_allclose(np.abs(heard[1 - FADE_SAMPLES :]), fade, atol=1)
    assert np.all(np.abs(heard[: 1 - FADE_SAMPLES]) >= AMPLITUDE - AMPLITUDE / FADE_SAMPLES)


def test_a_second_text_replaces_the_first(browser: Browser, gateway: RunningGateway, stub: StubServer) -> None:
    browser.open_tapped(gateway.url)
    browser.fill("text", '{"chunks": [[20, 4]], "hang": true}')
    browser.click("speak")
    browser.until(lambda: browser.text("status") == "Speaking")
    browser.fill("text", "Good morning.")
    browser.click("speak")
    browser.until(lambda: browser.text("status") == "Heard 3.2 s")
    assert stub.servicer.cancelled == 1
    assert len(spoken(stub)) == 2


def test_words_are_spoken_while_more_are_typed(page: Browser, stub: StubServer) -> None:
    page.click("live")
    page.type("words", "These words are ")
    page.until(lambda: page.text("status") == "Speaking")
    page.type("words", "spoken as they come")
    assert page.text("said") == "These words are spoken as they "
    page.type("words", "\n")
    page.until(lambda: page.text("status").startswith("Heard"))
    *pieces, last = [input_text(request, "text") for request in spoken(stub)]
    assert pieces == ["These ", "words ", "are ", "spoken ", "as ", "they ", "come"]
    assert last == ""
    page.type("words", "Again. ")
    page.until(lambda: page.text("status") == "Speaking")
    page.click("stop")
    eventually(lambda: stub.servicer.running == 0, 2)
    assert page.text("alert") == ""
    assert page.messages() == []


@pytest.mark.parametrize(("reason", "shown"), [("incomplete", "before the end"), ("repetition", "got stuck")])
def test_speech_that_ended_early_is_said_to(page: Browser, reason: str, shown: str) -> None:
    page.click("live")
    ending = {"chunks": [[0, 1]], "usage": [1, 7, 20, 0], "reason": reason}
    # Typed, it would be sent in pieces.
    page.run("document.getElementById('words').value = arguments[0]", json.dumps(ending))
    page.type("words", "\n")
    page.until(lambda: shown in page.text("alert"))


def test_chinese_needs_no_spaces(page: Browser, stub: StubServer) -> None:
    page.click("live")
    page.type("words", "你好\n")
    page.until(lambda: page.text("status").startswith("Heard"))
    assert "".join(input_text(request, "text") for request in spoken(stub)) == "你好"


def test_a_new_choice_holds_from_the_next_utterance(page: Browser, stub: StubServer) -> None:
    page.click("live")
    for voice, style in (("ono_anna", "whispering"), ("ryan", "shouting")):
        page.choose("voice", voice)
        page.fill("style", style)
        page.type("words", "Hello.\n")
        page.until(lambda: page.text("status") == "Speaking")
        page.until(lambda: page.text("status").startswith("Heard"))
    begun = [request for request in spoken(stub) if input_text(request, "speaker")]
    assert [(input_text(r, "speaker"), input_text(r, "instruct")) for r in begun] == [
        ("ono_anna", "whispering"),
        ("ryan", "shouting"),
    ]


def test_an_idle_connection_is_replaced_silently(browser: Browser) -> None:
    with StubServer(frames=3) as stub, RunningGateway(stub.url, idle_seconds=0.5) as gateway:
        browser.open(gateway.url)
        browser.click("live")
        for _ in range(2):
            browser.type("words", "Hello.\n")
            browser.until(lambda: browser.element("stop").is_enabled())
            browser.until(lambda: not browser.element("stop").is_enabled())
            assert browser.text("status") == "Heard 0.2 s"
            assert browser.text("alert") == ""
        assert len([request for request in spoken(stub) if input_text(request, "speaker")]) == 2


def test_without_https_the_whole_speech_is_played(browser: Browser, gateway: RunningGateway) -> None:
    browser.open(gateway.url.replace("127.0.0.1", INSECURE_HOST))
    assert browser.text("limits").startswith("Without HTTPS")
    assert not browser.element("live").is_enabled()
    browser.click("speak")
    browser.until(lambda: browser.text("status") == "Speaking")
    assert browser.run("return document.querySelector('#whole-speech').duration") == pytest.approx(FRAMES * 0.08)
    browser.until(lambda: browser.text("status") == "Heard 3.2 s")
    browser.click("speak")
    browser.until(lambda: browser.text("status") == "Speaking")
    browser.click("stop")
    assert browser.run("return document.querySelector('#whole-speech').paused")
    assert browser.text("status") == "Stopped"
    assert browser.messages() == []


def test_figures_have_plain_names_and_exact_hints(page: Browser) -> None:
    hints = "return [...document.querySelectorAll('dl [title]')].map((e) => [e.innerText.split('\\n')[0], e.title])"
    assert [(name, hint.split(":")[0]) for name, hint in page.run(hints)] == [
        ("Answered after", "First audio"),
        ("First sound after", "First sound"),
        ("Pauses", "Underruns"),
    ]


def test_without_scripts_the_page_says_so(browser: Browser, gateway: RunningGateway) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.driver.get(gateway.url)
        assert "needs JavaScript" in browser.driver.find_element("tag name", "main").text
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_gateway_that_is_gone_cannot_be_reached(browser: Browser, stub: StubServer) -> None:
    with RunningGateway(stub.url) as gateway:
        browser.open(gateway.url)
    browser.click("speak")
    browser.until(lambda: browser.text("alert") == "The gateway cannot be reached.")
    browser.click("live")
    browser.type("words", "Hello ")
    browser.until(lambda: "cannot be reached" in browser.text("alert"))
    browser.until(lambda: browser.text("status") == "")


def test_an_error_appears_at_its_field(page: Browser) -> None:
    page.fill("text", '{"error": "INVALID_ARG: instruct: \'x\': not for this voice"}')
    page.click("speak")
    page.until(lambda: page.element("style").get_attribute("aria-invalid"))
    assert page.text("style-error") == "instructions: 'x': not for this voice"
    assert page.driver.switch_to.active_element.get_attribute("id") == "style"
    page.type("style", "y")
    assert not page.element("style").get_attribute("aria-invalid")
    assert page.run("return document.querySelector('#style-error')") is None
    page.fill("text", '{"chunks": [[0, 2]], "error": "INTERNAL: the codec failed"}')
    page.click("speak")
    page.until(lambda: page.text("alert") == "the request failed in the server")


@pytest.mark.parametrize(("field", "tensor"), [("voice", "speaker"), ("seed", "seed"), ("style", "instruct")])
def test_an_error_moves_no_other_field(page: Browser, field: str, tensor: str) -> None:
    others = """
        return [...document.querySelectorAll("#speech .fields .field > *:not(.error, #style, [for=style])")]
            .map((part) => [part.id, JSON.stringify(part.getBoundingClientRect())]);
    """
    before = page.run(others)
    page.fill("text", json.dumps({"error": f"INVALID_ARG: {tensor}: {'too long ' * 9}"}))
    page.click("speak")
    page.until(lambda: page.element(field).get_attribute("aria-invalid"))
    assert page.run(others) == before


def test_a_key_is_asked_for_and_kept_in_the_tab(
    browser: Browser, stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, line = new_key("anna")
    monkeypatch.setenv(KEYS_VARIABLE, line)
    with RunningGateway(stub.url) as gateway:
        browser.driver.get(gateway.url)
        browser.until(lambda: browser.element("key").is_displayed())
        browser.type("key", "wrong\n")
        browser.until(lambda: browser.element("key").get_attribute("aria-invalid"))
        assert browser.text("key-error") == "A valid API key is required."
        browser.fill("key", f"{key}\n")
        browser.until(lambda: not browser.element("key").is_displayed())
        browser.driver.refresh()
        browser.until(lambda: browser.run("return document.querySelector('#voice').options.length"))
        browser.click("live")
        browser.type("words", "Hello.\n")
        browser.until(lambda: browser.text("status") == "Speaking")
        browser.click("stop")
        assert browser.run("return [sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]


def test_a_recording_becomes_a_voice(browser: Browser) -> None:
    with StubServer(frames=3, voices={}) as base, RunningGateway(base.url, cloning="consent") as gateway:
        browser.open(gateway.url)
        browser.driver.find_element("tag name", "summary").click()
        browser.type("name", "anna")
        browser.click("consent")
        browser.element("clone").submit()
        browser.until(lambda: browser.run("return document.querySelector('#sample-error') !== null"))
        browser.click("record")
        browser.until(lambda: browser.text("record") == "Stop recording")
        browser.run("return new Promise((resolve) => setTimeout(resolve, 1200))")
        browser.click("record")
        browser.until(lambda: browser.element("preview").is_displayed())
        browser.element("clone").submit()
        browser.until(lambda: "saved" in browser.text("status"))
        [registered] = [r for r in base.servicer.received if input_text(r, "operation") == "register_voice"]
        samples = dict(zip((t.name for t in registered.inputs), registered.raw_input_contents, strict=True))
        assert np.abs(np.frombuffer(samples["ref_audio"], "<f4")).max() > 0.01, "the microphone beeps"
        browser.click("speak")
        browser.until(lambda: browser.text("status").startswith("Heard"))
        assert input_text(spoken(base)[-1], "voice") == "anna"
        browser.click("forget")
        browser.until(lambda: "deleted" in browser.text("status"))
        assert base.servicer.voices == {}


def test_the_download_is_the_speech(page: Browser) -> None:
    page.run("""
        URL.createObjectURL = (blob) => { window.saved = blob; return "#"; };
        HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };
    """)
    page.click("speak")
    page.until(lambda: page.text("status").startswith("Heard"))
    page.click("download")
    bytes_ = page.run("return saved.arrayBuffer().then((buffer) => [...new Uint8Array(buffer)])")
    content = bytes(bytes_)
    assert page.run("return savedAs") == "speech.wav"
    assert (content[:4], content[8:16]) == (b"RIFF", b"WAVEfmt ")
    assert int.from_bytes(content[24:28], "little") == 24_000
    pcm = np.frombuffer(content[44:], "<i2")
    assert int.from_bytes(content[40:44], "little") == pcm.nbytes == FRAMES * 1920 * 2
    assert np.all(np.abs(trimmed(pcm)) == AMPLITUDE)


def test_the_keyboard_reaches_everything_in_order(page: Browser) -> None:
    page.run("document.activeElement.blur()")
    reached = []
    for _ in FOCUS_ORDER:
        page.driver.switch_to.active_element.send_keys("\t")
        reached.append(page.driver.switch_to.active_element.get_attribute("id"))
    assert reached == FOCUS_ORDER
    unnamed = """
        return [...document.querySelectorAll("input, select, textarea, button, canvas")]
            .filter((e) => !(e.labels?.length || e.textContent.trim() || e.ariaLabel)).map((e) => e.id);
    """
    assert page.run(unnamed) == []
    for modifier in ("\ue009", "\ue03d"):  # Control, Command
        page.type("text", f"{modifier}\n")
        page.until(lambda: page.text("status") == "Speaking")
        page.type("text", "\ue00c")
        page.until(lambda: page.text("status") == "Stopped")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(browser: Browser, gateway: RunningGateway, width: int, scheme: str) -> None:
    with browser.screen(width, scheme):
        browser.open(gateway.url)
        browser.run(AXE)
        assert browser.run(VIOLATIONS) == []
        browser.fill("text", '{"error": "INVALID_ARG: instruct: not for this voice"}')
        browser.click("speak")
        browser.until(lambda: browser.element("style").get_attribute("aria-invalid"))
        assert browser.run(VIOLATIONS) == []
        browser.click("live")
        assert browser.run(VIOLATIONS) == []


def test_axe_finds_nothing_in_the_form_for_voices(browser: Browser) -> None:
    with StubServer(voices={}) as base, RunningGateway(base.url) as gateway:
        browser.open(gateway.url)
        browser.driver.find_element("tag name", "summary").click()
        browser.run(AXE)
        assert browser.run(VIOLATIONS) == []


@pytest.mark.parametrize("width", [390, 320])
def test_nothing_overlaps_on_a_phone(browser: Browser, gateway: RunningGateway, width: int) -> None:
    with browser.screen(width):
        browser.open(gateway.url)
        for _ in range(2):
            assert browser.run(OVERLAPS) == []
            assert browser.run("return document.documentElement.scrollWidth") == width
            browser.click("live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart(browser: Browser, gateway: RunningGateway, scheme: str) -> None:
    with browser.screen(1280, scheme):
        browser.open(gateway.url)
        placeholder = "return getComputedStyle(document.querySelector('#style'), '::placeholder').color"
        assert browser.run(placeholder) == browser.run("return getComputedStyle(document.querySelector('dt')).color")
        assert contrast(browser, "--on-accent", "--accent") > 4.5
        for background in ("--paper", "--card"):
            for text in ("--ink", "--muted", "--bad"):
                assert contrast(browser, text, background) > 4.5
            assert contrast(browser, "--edge", background) > 3


def contrast(browser: Browser, *names: str) -> float:
    """The ratio that WCAG 2 defines."""
    values = browser.run(
        "return arguments[0].map((n) => getComputedStyle(document.documentElement).getPropertyValue(n))", names
    )
    levels = sorted(luminance(value.strip().removeprefix("#")) for value in values)
    return (levels[1] + 0.05) / (levels[0] + 0.05)


def luminance(digits: str) -> float:
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    channels = np.array([int(digits[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_the_api_is_shown(browser: Browser, gateway: RunningGateway) -> None:
    browser.messages()  # drops those of earlier tests
    browser.driver.get(f"{gateway.url}/docs")
    browser.until(lambda: "POST /v1/audio/speech/batch" in browser.run("return document.body.innerText"))
    text = browser.run("return document.body.innerText")
    assert "response_format" in text
    assert "required" in text
    assert not browser.messages()
