"""The ports of a server, which must be free before it starts: its own health would be another server's."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, fields

import psutil

from scripts.server.installation import ServerError


@dataclass(frozen=True)
class Ports:
    grpc: int = 8001
    http: int = 8000
    metrics: int = 8002

    @classmethod
    def of(cls, options: Sequence[str]) -> "Ports":
        """Ports in a server's command, else the defaults."""
        pairs = (option.removeprefix("--").partition("-port=") for option in options)
        return cls(**{name: int(value) for name, _, value in pairs if name in {field.name for field in fields(cls)}})

    @classmethod
    def free(cls) -> "Ports":
        with socket.socket() as a, socket.socket() as b, socket.socket() as c:
            for s in (a, b, c):
                s.bind(("localhost", 0))
            return cls(*(s.getsockname()[1] for s in (a, b, c)))

    @property
    def options(self) -> list[str]:
        return [f"--{field.name}-port={getattr(self, field.name)}" for field in fields(self)]

    def check(self) -> None:
        """Raises ServerError for a port that is taken."""
        for field in fields(self):
            check_port(getattr(self, field.name), f"--{field.name}-port")


def check_port(port: int, option: str) -> None:
    """Raises ServerError, with the owner of a port that is taken."""
    with socket.socket() as listener:
        # As servers do: a port whose connections have just ended is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            reason = f"{error.strerror}, by {_owner(port)}"
            raise ServerError(f"port {port}: {reason}: end that, or choose another {option}") from None


def _owner(port: int) -> str:
    found = (c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port)
    if (pid := next(found, None)) is None:
        return "another user's program"
    return f"{psutil.Process(pid).name()} (process {pid})"
