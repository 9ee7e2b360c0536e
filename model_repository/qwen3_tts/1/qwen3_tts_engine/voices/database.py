"""Connections to a PostgreSQL database that may go away and return."""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from qwen3_tts_engine.request import RequestError, Unavailable

log = logging.getLogger(__name__)

# One each for lookups, operations and loads, which run on threads of their own (voices/service.py).
CONNECTIONS = 3
CONNECT_SECONDS = 3
# Time between two refreshes, which also check a connection, and between two attempts to reach a database that is away.
CHECK_SECONDS = 1.0
# Limit of a check or a refresh.
ANSWER_SECONDS = 2.0
PARAMETERS: dict[str, Any] = {
    "application_name": "qwen3-tts voices",
    "client_encoding": "UTF8",
    "connect_timeout": CONNECT_SECONDS,
    # The kernel reports a host that vanished.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
    # The database itself ends what a server that froze or was cut off has left: a statement, a lock in a transaction.
    "options": "-c statement_timeout=10s -c idle_in_transaction_session_timeout=10s",
}
OnConnection = Callable[[psycopg.Connection], None]
AWAY = "voices_dsn: the database of the voices does not answer: try again later"


class Database:
    """Lends connections, each for a limited time; a thread of its own opens and checks them.

    Once a connection fails, the database counts as away: callers get Unavailable at once until that thread has new
    connections. So no caller waits for a database that does not answer.
    """

    def __init__(self, dsn: str, check: OnConnection, refresh: OnConnection) -> None:
        """`check` examines each new connection; `refresh` runs every CHECK_SECONDS.

        Raises psycopg.Error and what `check` raises.
        """
        self._dsn, self._check, self._refresh = dsn, check, refresh
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._reason = ""
        self._is_away = self._is_closed = False
        self._idle = self._connect()
        self._thread = threading.Thread(target=self._watch, name="voices-database", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def connection(self, seconds: float) -> Iterator[psycopg.Connection]:
        """A connection in autocommit mode, which is cut after `seconds`.

        Raises Unavailable while the database is away and for errors that may pass, RequestError for others, except
        psycopg.IntegrityError and DataError, which the caller's values cause.
        """
        connection = self._take(seconds)
        try:
            with _cut_after(seconds, connection):
                yield connection
        except (psycopg.IntegrityError, psycopg.DataError):
            raise
        except psycopg.Error as error:
            raise self._failed(connection, error) from None
        finally:
            self._give_back(connection)

    def close(self) -> None:
        """Safe to call twice."""
        with self._changed:
            self._is_closed = True
            self._close_idle()
        self._wake.set()
        self._thread.join(CONNECT_SECONDS)

    def _take(self, seconds: float) -> psycopg.Connection:
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._is_away or self._is_closed, seconds)
            if not self._idle:
                raise Unavailable(AWAY)
            return self._idle.pop()

    def _give_back(self, connection: psycopg.Connection) -> None:
        if connection.closed:
            self._lose("a connection was closed")
        with self._changed:
            if self._is_away or self._is_closed:
                connection.close()
            else:
                self._idle.append(connection)
                self._changed.notify()

    def _failed(self, connection: psycopg.Connection, error: psycopg.Error) -> RequestError:
        reason = one_line(error)
        if connection.closed:
            self._lose(reason)
            return Unavailable(AWAY)
        log.warning("the database of the voices (voices_dsn) refuses: %s", reason)
        # Timeouts, a full disk, a standby that only reads; anything else is an error of the registry.
        kind = Unavailable if isinstance(error, psycopg.OperationalError | psycopg.InternalError) else RequestError
        return kind(f"voices_dsn: {reason}")

    def _lose(self, reason: str) -> None:
        with self._changed:
            if self._is_away or self._is_closed:
                return
            self._is_away = True
            self._close_idle()
        self._report(reason)
        self._wake.set()

    def _report(self, reason: str) -> None:
        """Logs each reason once in a row."""
        if reason != self._reason:
            log.warning("the database of the voices (voices_dsn) is away: %s; cached voices go on", reason)
        self._reason = reason

    def _close_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle = []
        self._changed.notify_all()

    def _connect(self) -> list[psycopg.Connection]:
        connections: list[psycopg.Connection] = []
        try:
            while len(connections) < CONNECTIONS:
                connection = psycopg.connect(self._dsn, autocommit=True, **PARAMETERS)
                connections.append(connection)
                # A repeatable read would not see what other servers did before they released a lock.
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                with _cut_after(ANSWER_SECONDS, connection):
                    self._check(connection)
        except BaseException:
            for connection in connections:
                connection.close()
            raise
        return connections

    def _watch(self) -> None:
        while not self._is_closed:
            self._wake.clear()
            if self._is_away:
                self._recover()
            else:
                with contextlib.suppress(RequestError), self.connection(ANSWER_SECONDS) as connection:
                    self._refresh(connection)
            if not self._is_closed:
                self._wake.wait(CHECK_SECONDS)

    def _recover(self) -> None:
        try:
            connections = self._connect()
        except Exception as error:
            self._report(one_line(error))
            return
        with self._changed:
            self._idle, self._is_away = connections, False
            if self._is_closed:
                self._close_idle()
        self._reason = ""
        log.warning("the database of the voices (voices_dsn) answers again")


def one_line(error: Exception) -> str:
    """The first line of an error; the others quote statements."""
    return next(iter(str(error).splitlines()), type(error).__name__)


@contextlib.contextmanager
def _cut_after(seconds: float, connection: psycopg.Connection) -> Iterator[None]:
    """Cuts the connection after `seconds`: a frozen database answers neither statements nor their cancellation."""
    deadline = threading.Timer(seconds, _cut, (connection,))
    deadline.daemon = True
    deadline.start()
    try:
        yield
    finally:
        deadline.cancel()
        # A cut that has begun must not reach a descriptor that was closed and opened again.
        deadline.join()


def _cut(connection: psycopg.Connection) -> None:
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)
