"""Drains a server: health goes first, then new requests are refused, and open streams finish within a limit.

    python -m scripts.embedded.drain --file build/drain-8000 --seconds 30

returns once no stream is open, or at the limit; it does not end the server. The launcher (supervisor.py) and
docker/serve.sh drain before they end tritonserver, so this command is for a pod's preStop hook, or for a server that
shall go on. Standard library only: the image holds this file alone.
"""

import argparse
import os
import re
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

FILE_VARIABLE = "QWEN3_TTS_DRAIN_FILE"
SECONDS_VARIABLE = "QWEN3_TTS_DRAIN_SECONDS"
DEFAULT_SECONDS = 30.0
# Time for load balancers to notice that the server is not ready: four health checks of the fleet's Envoy.
NOTICE_SECONDS = 1.0
POLL_SECONDS = 0.1
# Content of the drain file (qwen3_tts_engine/lifecycle/draining.py).
UNREADY, REFUSING = "unready", "refusing"
OPEN, DRAINING = "qwen3_tts_requests_open", "qwen3_tts_draining"
MODEL = "qwen3_tts"


@dataclass
class Drain:
    """One drain of a server. The file keeps its progress, so a second process continues it."""

    file: Path
    metrics_url: str
    seconds: float = DEFAULT_SECONDS
    """How long streams may take once new ones are refused."""
    notice_seconds: float = NOTICE_SECONDS

    def begin(self) -> None:
        if not self.file.exists():
            replace_file(self.file, UNREADY)

    def clear(self) -> None:
        """The server takes requests again."""
        self.file.unlink(missing_ok=True)

    def is_over(self) -> bool:
        """To be polled: whether no stream is open, or the time is over, or the drain was cancelled by `clear`."""
        try:
            return self._is_over()
        except FileNotFoundError:
            return True

    def _is_over(self) -> bool:
        if self.file.read_text().strip() == UNREADY:
            if self._age_seconds() >= self.notice_seconds:
                replace_file(self.file, REFUSING)
            return False
        return self._age_seconds() >= self.seconds or is_idle(_read(self.metrics_url))

    def _age_seconds(self) -> float:
        """Of the present step; seconds."""
        return time.time() - self.file.stat().st_mtime


def is_idle(metrics: str) -> bool:
    """Whether every model refuses new requests and has none open, from the text of a server's metrics."""
    draining, open_requests = _values(metrics, DRAINING), _values(metrics, OPEN)
    return bool(draining) and all(draining) and not any(open_requests)


def responds(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _values(metrics: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)", metrics, re.MULTILINE)]


def _read(url: str) -> str:
    """Empty if there is no answer: a server without metrics has the whole time."""
    try:
        with urllib.request.urlopen(url, timeout=2) as page:
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
    options = parser.parse_args()
    if options.file is None:
        parser.error(f"--file, or the environment variable {FILE_VARIABLE}, must name the server's drain_file")
    is_ready = responds(f"http://localhost:{options.http_port}/v2/models/{MODEL}/ready")
    if not is_ready and not options.file.exists():
        print("drain: the server is not ready, so it has no streams", file=sys.stderr, flush=True)
        return
    metrics_url = f"http://localhost:{options.metrics_port}/metrics"
    drain = Drain(options.file, metrics_url, options.seconds, options.notice_seconds)
    drain.begin()
    print("drain: unready, streams finish", file=sys.stderr, flush=True)
    while not drain.is_over():
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
