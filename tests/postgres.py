"""A private PostgreSQL server, from the programs that scripts/postgres.sh provides."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path

import psycopg
import pytest

from scripts.server.supervisor import end_with_parent

START_SECONDS = 120
# The server refuses to run as root.
USER = "nobody"
# A unix socket only, and no waiting for a disk that keeps nothing.
OPTIONS = ("listen_addresses=", "fsync=off", "jit=off", "max_connections=200")


class PostgresServer:
    """Runs as another user than root, in a folder of its own below /tmp, which that user can reach."""

    def __init__(self) -> None:
        """Skips the test where there is no PostgreSQL, or none that the other user can run."""
        self._initdb, self._postgres = (shutil.which(name) or "" for name in ("initdb", "postgres"))
        if not self._initdb or not self._postgres:
            pytest.skip("there is no PostgreSQL: scripts/postgres.sh provides it")
        self._user = USER if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
        if self._user:
            shutil.chown(self.folder, self._user)
        self._numbers = count()
        self._process: subprocess.Popen[bytes] | None = None
        command = [self._initdb, "--pgdata=data", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-sync"]
        try:
            made = subprocess.run(command, cwd=self.folder, user=self._user, capture_output=True, text=True)
        except PermissionError as error:
            self.remove()
            pytest.skip(f"{self._user} cannot run {self._initdb}: {error}")
        assert made.returncode == 0, made.stderr
        self.start()

    def dsn(self, database: str = "postgres") -> str:
        return f"host={self.folder} user=postgres dbname={database}"

    def create_database(self) -> str:
        """The connection string of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def execute(self, statement: str, dsn: str | None = None) -> None:
        with psycopg.connect(dsn or self.dsn(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        options = [part for option in OPTIONS for part in ("-c", option)]
        command = [self._postgres, "-D", "data", "-k", str(self.folder), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, user=self._user, stdout=log, stderr=log, preexec_fn=end_with_parent
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn()).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """End all sessions and the server at once."""
        if self._process:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(START_SECONDS)
            self._process = None

    def signal_sessions(self, dsn: str, number: signal.Signals) -> None:
        """Send a signal to the processes of the sessions in a database."""
        database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        with psycopg.connect(self.dsn()) as connection:
            found = connection.execute("SELECT pid FROM pg_stat_activity WHERE datname = %s", (database,)).fetchall()
        assert found
        for (pid,) in found:
            os.kill(pid, number)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)
