"""A real PostgreSQL for tests: the system's binaries, a data directory and a socket of our own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.servers import free_port, wait_for_sync

_PLACES = ("/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt/postgresql")
_USERS = ("postgres", "nobody")
PASSWORD = "geheim-4711"
_NUMBERS = count(1)


def postgres_binaries() -> Path | None:
    """The folder with ``postgres`` and ``initdb``, of the newest release; None if there is none."""
    found = [path.parent for place in _PLACES for path in Path(place).glob("**/bin/initdb")]
    named = shutil.which("initdb")
    if named:
        found.append(Path(named).resolve().parent)

    def release(folder: Path) -> int:
        digits = "".join(filter(str.isdigit, folder.parent.name))
        return int(digits) if digits else 0

    found = [folder for folder in found if (folder / "postgres").exists()]
    return max(found, key=release, default=None)


class PostgresServer:
    """A server under a test's control; every database() is empty.

    ``options`` are configuration parameters beside or instead of ours, which are those of a test:
    no fsync, little memory.
    """

    def __init__(self, binaries: Path, directory: Path, **options: str) -> None:
        self._binaries = binaries
        self._options = options
        self.directory = directory
        self.port = free_port()
        self._child: subprocess.Popen[bytes] | None = None
        self._log = directory / "log"
        self._user = _other_user() if os.geteuid() == 0 else None

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self._binaries / program, *arguments],
            user=self._user,
            cwd=self.directory,
            capture_output=True,
            check=True,
            timeout=60,
        )

    def start(self) -> None:
        """Make the data directory if need be, and start."""
        data = self.directory / "data"
        if not data.exists():
            if self._user is not None:
                shutil.chown(self.directory, self._user)
            secret = self.directory / "password"
            secret.write_text(PASSWORD)
            secret.chmod(0o644)
            self._run(
                "initdb", "-D", str(data), "-U", "ackgate", "-E", "UTF8", "--locale=C.UTF-8",
                "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync",
            )  # fmt: skip
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
            "fsync": "off",
            "shared_buffers": "32MB",
            "max_connections": "60",
            "deadlock_timeout": "50ms",
        } | self._options
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [
                    *(self._binaries / "postgres", "-D", str(data), "-p", str(self.port)),
                    *(part for key, value in options.items() for part in ("-c", f"{key}={value}")),
                ],
                user=self._user,
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )
        wait_for_sync(self._is_ready, 30, f"PostgreSQL; its log: {self._log.read_text()[-2000:]}")

    def _is_ready(self) -> bool:
        assert self._child is not None
        assert self._child.poll() is None, self._log.read_text()
        ready = subprocess.run(
            [self._binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port)],
            capture_output=True,
            check=False,
            timeout=10,
        )
        return ready.returncode == 0

    @property
    def running(self) -> bool:
        """Whether it has been started and not stopped."""
        return self._child is not None

    def database(self) -> str:
        """The URL of a new, empty schema: as good as a database, and made in no time."""
        name = f"test{next(_NUMBERS)}"
        self.sql(f"CREATE SCHEMA {name}", "postgres")
        return f"{self.url('postgres')}?search_path={name}"

    def url(self, name: str, password: str = PASSWORD) -> str:
        """The URL of a database."""
        return f"postgresql://ackgate:{password}@127.0.0.1:{self.port}/{name}"

    def sql(self, statement: str, database: str) -> str:
        """Run a statement with psql; returns what it prints."""
        done = self._run("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", statement,
                         self.url(database))  # fmt: skip
        return done.stdout.decode().strip()

    def stop(self) -> None:
        """Stop at once, as a crash would."""
        child, self._child = self._child, None
        if child is not None:
            try:
                # SIGQUIT: nobody is waited for.
                child.send_signal(signal.SIGQUIT)
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _other_user() -> str:
    """Somebody who is not root: the server refuses to run as root."""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _USERS if name in known)


@contextmanager
def postgres_here() -> Iterator[PostgresServer]:
    """A running server; skips the test if PostgreSQL is not installed."""
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed here")
    with postgres_server(binaries) as server:
        yield server


@contextmanager
def postgres_server(binaries: Path, **options: str) -> Iterator[PostgresServer]:
    """A running server, with ``options`` as PostgresServer takes them; its data goes with it."""
    directory = Path(tempfile.mkdtemp(prefix="pg"))
    directory.chmod(0o755)
    server = PostgresServer(binaries, directory, **options)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
