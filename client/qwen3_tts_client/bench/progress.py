"""The progress of a benchmark on a terminal."""

import sys
import time
from pathlib import Path
from typing import TextIO

from qwen3_tts_client.analysis.playback import NS
from qwen3_tts_client.bench.load import Phase

_REQUEST, _OK = b'{"kind":"request"', b'"outcome":"ok"'
_CLEAR = "\r\x1b[K"


class Progress:
    """Counts the requests of one phase as the workers record them."""

    def __init__(self, records: Path, name: str, phase: Phase, stream: TextIO | None = None) -> None:
        self._name = name
        self._phase = phase
        self._stream = stream or sys.stderr
        self._is_shown = self._stream.isatty()
        self._done = self._failed = 0
        self._file = records.open("rb")
        self._file.seek(0, 2)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        if self._is_shown:
            print(_CLEAR, end="", file=self._stream, flush=True)

    def update(self) -> None:
        if not self._is_shown:
            return
        for line in self._lines():
            self._done += line.startswith(_REQUEST)
            self._failed += line.startswith(_REQUEST) and _OK not in line
        print(f"{_CLEAR}{self}", end="", file=self._stream, flush=True)

    def __str__(self) -> str:
        of_all = f" of {self._phase.requests}" if self._phase.requests else ""
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{self._name} {self._phase.name}: {self._done}{of_all} requests{failed}{self._left()}"

    def _left(self) -> str:
        if self._phase.stop_ns is None:
            return ""
        left_s = (self._phase.stop_ns - time.perf_counter_ns()) / NS
        return f", {left_s:.0f} s left" if left_s > 0 else ", last streams end"

    def _lines(self) -> list[bytes]:
        """The complete lines since the last call."""
        start = self._file.tell()
        complete, newline, _ = self._file.read().rpartition(b"\n")
        self._file.seek(start + len(complete) + len(newline))
        return complete.split(b"\n")
