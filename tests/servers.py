"""Real servers for tests: Redis or Valkey on a unix socket, optionally on a free TCP port too."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.store.embedded import AppendFsync, answers_ping, bundled_binary, ends_with_parent

START_WAIT = 20.0


def redis_binaries() -> dict[str, Path]:
    """The servers found here by name: ``valkey`` (pip package), ``redis`` (PATH)."""
    found = {"valkey": bundled_binary(), "redis": shutil.which("redis-server")}
    return {name: Path(path) for name, path in found.items() if path}


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_sync(condition: Callable[[], object], deadline: float = 10.0, what: str = "") -> None:
    """Look at ``condition`` until it is true; AssertionError after ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {what or condition}")
        time.sleep(0.005)


async def wait_for(condition: Callable[[], object], deadline: float = 10.0, what: str = "") -> None:
    """As :func:`wait_for_sync`, letting the event loop run."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {what or condition}")
        await asyncio.sleep(0.005)


class RedisServer:
    """A server process under a test's control, with its data in ``directory``."""

    def __init__(
        self,
        directory: Path,
        binary: Path | None = None,
        *,
        appendfsync: AppendFsync = "always",
        tcp: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.socket = directory / "s"
        self.port = free_port() if tcp else 0
        self._binary = binary or next(iter(redis_binaries().values()))
        self._appendfsync = appendfsync
        self._options = tuple(options)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The unix socket's URL."""
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        """The TCP URL; only with ``tcp=True``."""
        assert self.port
        return f"redis://127.0.0.1:{self.port}"

    @property
    def child(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._child is not None, "the server is not running"
        return self._child

    def start(self) -> None:
        """Start on the data that is there, and wait until PING answers."""
        assert self._child is None
        command = [str(self._binary), "--port", str(self.port), "--unixsocket", str(self.socket)]
        command += ["--bind", "127.0.0.1", "--dir", str(self.directory), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", self._appendfsync, *self._options]
        with (self.directory / "log").open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                preexec_fn=ends_with_parent(),  # noqa: PLW1509 - two plain system calls
            )
        wait_for_sync(self._ready, START_WAIT, f"start of {command}")

    def kill9(self) -> None:
        """End it without warning."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in peace, even if it is paused."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self.resume()
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop the process: its sockets stay open and nothing answers."""
        os.kill(self.child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        os.kill(self.child.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        child, self._child = self.child, None
        child.send_signal(how)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise

    def _ready(self) -> bool:
        if self.child.poll() is not None:
            text = (self.directory / "log").read_text(errors="replace")
            raise AssertionError(f"the server ended: {text[-2000:]}")
        return answers_ping(self.socket)


@contextmanager
def redis_server(
    binary: Path | None = None,
    *,
    appendfsync: AppendFsync = "always",
    tcp: bool = False,
    options: Sequence[str] = (),
) -> Iterator[RedisServer]:
    """A running server in a directory of its own; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ackgate-test-", ignore_cleanup_errors=True) as place:
        server = RedisServer(Path(place), binary, appendfsync=appendfsync, tcp=tcp, options=options)
        try:
            server.start()
            yield server
        finally:
            server.stop()
