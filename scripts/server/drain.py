"""Drains a server: health goes first, then new requests are refused, and streams that are open at the limit end.

    python -m scripts.server drain --file build/drain-8000 --seconds 30

returns once no stream is open, and leaves the server running. The launcher (supervisor.py) drains by itself before it
ends tritonserver, which then has nothing to wait for: its releases treat open streams differently.
"""

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from qwen3_tts_client.proxies import bypass_for_local_addresses
from qwen3_tts_client.records.prometheus import parse, scrape
from scripts.server.ports import Ports

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
        # A server without metrics has the whole time.
        return is_late or is_idle(scrape(self.metrics_url) or "")

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
    samples = parse(metrics)
    draining, open_requests = _values(samples, DRAINING), _values(samples, OPEN)
    return bool(draining) and all(draining) and not any(open_requests)


def responds(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        with LOCAL.open(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _values(samples: Mapping[str, float], metric: str) -> list[float]:
    return [value for name, value in samples.items() if name.partition("{")[0] == metric]


def replace_file(file: Path, content: str) -> None:
    """Writes a file that a reader never sees half-written."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(f"{content}\n")
    new.replace(file)


def main(
    file: Annotated[Path, typer.Option(envvar=FILE_VARIABLE, dir_okay=False, help="the server's drain_file")],
    seconds: Annotated[
        float, typer.Option(min=0, envvar=SECONDS_VARIABLE, help="time for open streams")
    ] = DEFAULT_SECONDS,
    notice_seconds: Annotated[float, typer.Option(min=0, help="unready before refusing")] = NOTICE_SECONDS,
    http_port: Annotated[int, typer.Option(help="of the server")] = Ports.http,
    metrics_port: Annotated[int, typer.Option(help="of the server")] = Ports.metrics,
) -> None:
    """Wait until a server has finished its streams, and takes no others."""
    bypass_for_local_addresses()
    drain = Drain(file, f"http://localhost:{metrics_port}/metrics", seconds, notice_seconds)
    if responds(f"http://localhost:{http_port}/v2/models/{MODEL}/ready") or file.exists():
        empty(drain)
    else:
        _log("the server is not ready, so it has no streams")


def empty(drain: Drain) -> None:
    """Returns when the drain is over."""
    try:
        drain.begin()
        _log("unready, streams finish" if drain.seconds > 0 else "streams end")
        while not drain.is_over():
            time.sleep(POLL_SECONDS)
    except OSError as error:
        _log(f"the file cannot be used: {error}")


def _log(message: str) -> None:
    print(f"drain: {message}", file=sys.stderr, flush=True)
