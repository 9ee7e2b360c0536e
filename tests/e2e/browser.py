"""A headless Chromium, driven through selenium, whose sound can be heard."""

import base64
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Is this machine, but no secure context, as a page over HTTP from another machine.
INSECURE_HOST = "lan.test"
DRIVERS = ("chromedriver", "chromium.chromedriver")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # containers run as root
    "--no-zygote",  # which the build of scripts/chromium.sh lacks
    "--disable-dev-shm-usage",
    "--window-size=900,1200",
    f"--host-resolver-rules=MAP {INSECURE_HOST} 127.0.0.1",
    # A microphone that beeps.
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
)
# Runs before the scripts of a page: sends what reaches the loudspeaker to a worklet of its own as well.
TAP = """
const code = `registerProcessor("tap", class extends AudioWorkletProcessor {
  process([[block]]) { if (block) this.port.postMessage(block.slice()); return true; }
})`;
window.heard = [];
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (target, ...rest) {
  if (!(target instanceof AudioDestinationNode)) return connect.call(this, target, ...rest);
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  this.context.audioWorklet.addModule(url).then(() => {
    const tap = new AudioWorkletNode(this.context, "tap");
    tap.port.onmessage = ({ data }) => heard.push(data);
    connect.call(this, tap);
    connect.call(tap, target);
    window.isTapped = true;
  });
  return connect.call(this, target, ...rest);
};
"""
HEARD = """
const bytes = new Uint8Array(heard.length * 512);
heard.forEach((block, i) => bytes.set(new Uint8Array(block.buffer), i * 512));
let text = "";
for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
return btoa(text);
"""


class Browser:
    """A context manager; skips the test if there is no browser."""

    def __init__(self) -> None:
        browser, driver = _first(BROWSERS), _first(DRIVERS)
        if not (browser and driver):
            pytest.skip("no browser: run scripts/chromium.sh, or install chromium and chromedriver")
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *exception: object) -> None:
        self.driver.quit()

    def open(self, url: str) -> None:
        """The page as a person sees it, with its content security policy."""
        self.driver.get(url)
        self.until(lambda: self.run("return document.querySelector('#language').options.length > 1"))

    def open_tapped(self, url: str) -> None:
        """The policy is off, because it forbids the tap's worklet."""
        self.driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
        tap = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": TAP})
        self.open(url)
        self.until(lambda: self.run("return window.isTapped"))
        self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", tap)
        self.driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})

    @contextlib.contextmanager
    def screen(self, width: int, scheme: str = "light") -> Iterator[None]:
        """Emulates a screen, that of a phone if it is narrow."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def heard(self) -> NDArray[np.int16]:
        """Waits for silence; what the AudioContext has played since the page was opened, without silence around it."""
        self.until(lambda: self.run("return heard.length && heard.at(-1).every((sample) => sample === 0)"))
        samples = np.frombuffer(base64.b64decode(self.run(HEARD)), "<f4") * 32768
        assert not np.any(samples % 1), "the AudioContext has resampled"
        return trimmed(samples.astype(np.int16))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def element(self, name: str) -> Any:
        return self.driver.find_element("id", name)

    def text(self, name: str) -> str:
        return str(self.element(name).text)

    def click(self, name: str) -> None:
        self.element(name).click()

    def type(self, name: str, text: str) -> None:
        self.element(name).send_keys(text)

    def fill(self, name: str, text: str) -> None:
        self.element(name).clear()
        self.type(name, text)

    def choose(self, name: str, value: str) -> None:
        from selenium.webdriver.support.select import Select

        Select(self.element(name)).select_by_value(value)

    def messages(self) -> list[str]:
        """Errors and warnings in the console; a refused request is one."""
        entries = self.driver.get_log("browser")
        expected = ("the server responded with a status of", "AudioContext was not allowed to start")
        return [e["message"] for e in entries if not any(part in e["message"] for part in expected)]

    def until(self, condition: Callable[[], Any], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{self.text('status')} {self.text('alert')} {self.messages()}"
            time.sleep(0.02)


def trimmed(samples: NDArray[np.int16]) -> NDArray[np.int16]:
    [loud] = np.nonzero(samples)
    return samples[loud[0] : loud[-1] + 1] if len(loud) else samples[:0]


def _first(names: tuple[str, ...]) -> str | None:
    """The first program found in this environment (scripts/chromium.sh) or on the machine."""
    folders = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return next((found for name in names if (found := shutil.which(name, path=folders))), None)
