"""A process of the fleet, whose output goes to the console line by line under its name."""

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from scripts.server.supervisor import end_with_parent

KILL_SECONDS = 10.0


class Child:
    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it from the main thread, with which it ends."""
        self.name = name
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
            # Ctrl-C at the terminal reaches the fleet, which ends its parts in order.
            start_new_session=True,
        )
        self._output = threading.Thread(target=self._copy_output, name=f"output of {name}", daemon=True)
        self._output.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        """SIGTERM, then SIGKILL."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def print_rest(self) -> None:
        """Returns when its last line is printed; after KILL_SECONDS, if what it left behind keeps the pipe open."""
        self._output.join(KILL_SECONDS)

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            print_line(self.name, line.decode(errors="replace").rstrip("\n"))


def print_line(name: str, text: str) -> None:
    """One write, so that lines of several processes do not mix."""
    with suppress(OSError):  # a closed terminal must not stop the reading of the pipes
        sys.stderr.write(f"{name} | {text}\n")
        sys.stderr.flush()
