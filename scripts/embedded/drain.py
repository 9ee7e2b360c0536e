"""Drains a server: health goes first, then new requests are refused, and streams that are open at the limit end.

    python -m scripts.embedded.drain --file build/drain-8000 --seconds 30

returns once no stream is open; it does not end the server, unless --end names its process. The launcher (supervisor.py)
and docker/serve.sh drain before they end tritonserver, which then has nothing to wait for: its releases treat open
streams differently. So this command is for a pod's preStop hook, or for a server that shall go on. Standard library
only: the image holds this file alone.
"""

import argparse
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FILE_VARIABLE = "QWEN3_TTS_DRAIN_FILE"
SECONDS_VARIABLE = "QWEN3_TTS_DRAIN_SECONDS"
DEFAULT_SECONDS = 30.0
# Time for load balancers to notice that the server is not ready: four health checks of the fleet's Envoy.
NOTICE_SECONDS = 1.0
# Time for the last errors of streams, once they have been told to end.
END_SECONDS = 3.0
# Time for tritonserver, which has no streams any more: every release hangs while a client holds a gRPC stream open.
EXIT_SECONDS = 10.0
POLL_SECONDS = 0.1
# Content of the drain file (qwen3_tts_engine/lifecycle/draining.py).
UNREADY, REFUSING, ENDING = "unready", "refusing", "ending"
OPEN, DRAINING = "qwen3_tts_requests_open", "qwen3_tts_draining"
MODEL = "qwen3_tts"
# Opens URLs without a proxy.
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Drain:
    """One drain of a server. The file keeps its progress, so a second process continues it."""

    file: Path
    metrics_url: str
    seconds: float = DEFAULT_SECONDS
    """How long streams may take once new ones are refused; with 0 they end at once."""
    notice_seconds: float = NOTICE_SECONDS

    def begin(self) -> None:
        if self.seconds <= 0:
            self.end()
        elif not self.file.exists():
            replace_file(self.file, UNREADY)

    def end(self) -> None:
        """Open streams end with UNAVAILABLE."""
        if not self.is_ending():
            replace_file(self.file, ENDING)

    def is_ending(self) -> bool:
        return self._step() == ENDING

    def clear(self) -> None:
        """The server takes requests again."""
        self.file.unlink(missing_ok=True)

    def is_over(self) -> bool:
        """Whether no stream is open, or was cancelled by `clear`; END_SECONDS after `end` in any case. To be polled."""
        step = self._step()
        if step == UNREADY:
            if self._age_seconds() >= self.notice_seconds:
                replace_file(self.file, REFUSING)
            return False
        if step == REFUSING and self._age_seconds() >= self.seconds:
            self.end()
            return False
        is_late = not step or (step == ENDING and self._age_seconds() >= END_SECONDS)
        return is_late or is_idle(_read(self.metrics_url))

    def _step(self) -> str:
        try:
            return self.file.read_text().strip()
        except FileNotFoundError:
            return ""

    def _age_seconds(self) -> float:
        """Age of the present step."""
        return time.time() - self.file.stat().st_mtime


def is_idle(metrics: str) -> bool:
    """Whether every model refuses new requests and has none open, from the text of a server's metrics."""
    draining, open_requests = _values(metrics, DRAINING), _values(metrics, OPEN)
    return bool(draining) and all(draining) and not any(open_requests)


def responds(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with LOCAL.open(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _values(metrics: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)", metrics, re.MULTILINE)]


def _read(url: str) -> str:
    """Empty if there is no answer: a server without metrics has the whole time."""
    try:
        with LOCAL.open(url, timeout=2) as page:
            return bytes(page.read()).decode()
    except (urllib.error.URLError, OSError):
        return ""


def replace_file(file: Path, content: str) -> None:
    """Writes a file that a reader never sees half-written."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(f"{content}\n")
    new.replace(file)


def main() -> None:
    environment = os.environ
    parser = argparse.ArgumentParser(description="Wait until a server has finished its streams, and takes no others.")
    parser.add_argument("--file", type=Path, default=environment.get(FILE_VARIABLE), help="the server's drain_file")
    parser.add_argument("--seconds", type=float, default=environment.get(SECONDS_VARIABLE) or DEFAULT_SECONDS)
    parser.add_argument("--notice-seconds", type=float, default=NOTICE_SECONDS, help="unready before refusing")
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--metrics-port", type=int, default=8002)
    parser.add_argument("--end", type=int, metavar="PROCESS", help="tritonserver, which ends afterwards")
    options = parser.parse_args()
    if options.file is None:
        parser.error(f"--file, or the environment variable {FILE_VARIABLE}, must name the server's drain_file")
    metrics_url = f"http://localhost:{options.metrics_port}/metrics"
    drain = Drain(options.file, metrics_url, options.seconds, options.notice_seconds)
    if responds(f"http://localhost:{options.http_port}/v2/models/{MODEL}/ready") or options.file.exists():
        empty(drain)
    else:
        _log("the server is not ready, so it has no streams")
    if options.end:
        end_process(options.end)


def empty(drain: Drain) -> None:
    """Returns when the drain is over."""
    try:
        drain.begin()
        _log("unready, streams finish" if drain.seconds > 0 else "streams end")
        while not drain.is_over():
            time.sleep(POLL_SECONDS)
    except OSError as error:
        _log(f"the file cannot be used: {error}")


def end_process(process: int) -> None:
    """SIGTERM, and SIGKILL for one that has not ended within EXIT_SECONDS."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
        deadline = time.monotonic() + EXIT_SECONDS
        while time.monotonic() < deadline:
            os.kill(process, 0)
            time.sleep(POLL_SECONDS)
        _log(f"process {process} has not ended within {EXIT_SECONDS:g} s; it is killed")
        os.kill(process, signal.SIGKILL)


def _log(message: str) -> None:
    print(f"drain: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
