"""The Redis client against real servers: order, coalescing, failures that end, reconnects."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.store.redis_client import (
    Redis,
    RedisAddress,
    Reply,
    StoreError,
    StoreUnavailable,
    Subscriber,
)
from app.store.redis_wire import reply_error
from tests.servers import RedisServer, free_port, redis_binaries, redis_server, wait_for

ECHO = "return {KEYS[1], ARGV[1]}"


@asynccontextmanager
async def client(url: str, reply_timeout: float = 5.0, **options: int) -> AsyncIterator[Redis]:
    redis = Redis(RedisAddress.parse(url), name="own", reply_timeout=reply_timeout, **options)
    await redis.start()
    try:
        yield redis
    finally:
        await redis.close()


async def info(redis: Redis, field: str) -> int:
    text = await redis.call("INFO", "stats")
    assert isinstance(text, bytes)
    lines = dict(line.split(b":", 1) for line in text.splitlines() if b":" in line)
    return int(lines[field.encode()])


# ------------------------------------------------------------------------------ addresses


def test_addresses() -> None:
    full = RedisAddress.parse("redis://bob:p%40ss@example.org:7000/3")
    assert (full.host, full.port, full.db) == ("example.org", 7000, 3)
    assert (full.username, full.password, full.tls) == ("bob", "p@ss", False)
    assert RedisAddress.parse("redis://localhost").port == 6379
    assert RedisAddress.parse("rediss://[::1]:1/?ssl_ca_certs=/ca.pem").ca_file == "/ca.pem"
    unix = RedisAddress.parse("unix:///run/my%20redis.sock?db=4")
    assert (unix.path, unix.db) == ("/run/my redis.sock", 4)
    assert str(unix) == "unix:///run/my%20redis.sock?db=4"


def test_a_password_is_never_printed() -> None:
    address = RedisAddress.parse("redis://:geheim@h:1/0")
    assert address.password == "geheim"
    for text in (str(address), repr(address), f"{address}"):
        assert "geheim" not in text
    assert str(address) == "redis://:***@h:1/0"


@pytest.mark.parametrize(
    "url",
    [
        "http://geheim@h",
        "redis://:ge/heim@h:1",
        "redis://:geheim@h:x",
        "redis://:geheim@h/one",
        "redis://",
        "unix://relative",
        "redis://:geheim@h/0?colour=red",
        "redis://h?db=-1",
    ],
)
def test_bad_addresses_are_refused_without_quoting_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"Redis|unix") as error:
        RedisAddress.parse(url)
    assert "heim" not in str(error.value)
    assert error.value.__cause__ is None


# ------------------------------------------------------------------- commands and scripts


async def test_replies_come_in_order_under_load(redis: Redis, prefix: str) -> None:
    seen: list[tuple[int, Reply | Exception]] = []
    script = redis.register("return redis.call('INCR', KEYS[1])")
    total = 0
    for _tick in range(100):
        for _ in range(200):
            total += 1

            def note(reply: Reply | Exception, number: int = total) -> None:
                seen.append((number, reply))

            if total % 2:
                redis.send(("INCR", f"{prefix}:n"), note)
            else:
                redis.run(script, (f"{prefix}:n",), (), note)
        await asyncio.sleep(0)
    await wait_for(lambda: len(seen) == total)
    assert seen == [(n, n) for n in range(1, total + 1)]
    assert redis.pending == 0


async def test_all_commands_of_a_tick_are_one_write(redis: Redis) -> None:
    replies: list[Reply | Exception] = []
    writes, reads = redis.writes, await info(redis, "total_reads_processed")
    for number in range(100):
        redis.send(("ECHO", number), replies.append)
    await wait_for(lambda: len(replies) == 100)
    assert redis.writes - writes == 2  # INFO, then the hundred
    # The server itself saw one read for all of them, and one for this INFO.
    assert await info(redis, "total_reads_processed") - reads == 2
    assert replies == [str(number).encode() for number in range(100)]


async def test_every_tick_has_its_write(redis: Redis) -> None:
    replies: list[Reply | Exception] = []
    before = redis.writes
    for _ in range(5):
        redis.send(("PING",), replies.append)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await wait_for(lambda: len(replies) == 5)
    assert redis.writes - before == 5


async def test_a_script_the_server_forgot_is_sent_again(redis: Redis) -> None:
    script = redis.register(ECHO)
    assert await redis.call_script(script, ("k",), ("v",)) == [b"k", b"v"]
    assert await redis.call("SCRIPT", "FLUSH") == b"OK"
    assert await redis.call_script(script, ("k",), (7,)) == [b"k", b"7"]


async def test_errors_are_values_and_belong_to_their_command(redis: Redis) -> None:
    replies: list[Reply | Exception] = []
    redis.send(("PING",), replies.append)
    redis.send(("NOSUCH",), replies.append)
    redis.send(("ECHO", "\ud800"), lambda reply: replies.insert(0, reply))
    redis.send(("ECHO", "x"), replies.append)
    assert not replies
    await wait_for(lambda: len(replies) == 4)
    assert isinstance(replies[0], StoreError)
    assert "cannot be sent" in str(replies[0])
    assert replies[1] == b"PONG"
    assert isinstance(replies[2], StoreError)
    assert replies[3] == b"x"
    with pytest.raises(StoreError, match="unknown command"):
        await redis.call("NOSUCH")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable),
        ("OOM command not allowed", StoreUnavailable),
        ("READONLY You can't write against a read only replica.", StoreUnavailable),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable),
        ("MISCONF Errors writing to the AOF file", StoreUnavailable),
        ("BUSY Redis is busy running a script", StoreUnavailable),
        ("ERR Error running script (call to f_ab): @user_script:1: -OOM no", StoreUnavailable),
        ("ERR Error running script (call to f_ab): @user_script:1: WRONG", StoreError),
        ("WRONGTYPE Operation against a key", StoreError),
        ("BUSYGROUP Consumer Group name already exists", StoreError),
    ],
)
def test_passing_states_are_unavailability(text: str, kind: type[Exception]) -> None:
    assert type(reply_error(text)) is kind


async def test_out_of_memory_and_read_only_are_unavailability(own: RedisServer) -> None:
    async with client(own.url) as redis:
        write = redis.register("return redis.call('SET', KEYS[1], ARGV[1])")
        await redis.call("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreUnavailable, match="OOM"):
            await redis.call("SET", "a", 1)
        with pytest.raises(StoreUnavailable, match="OOM"):
            await redis.call_script(write, ("a",), (1,))
        await redis.call("CONFIG", "SET", "maxmemory", 0)
        await redis.call("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await redis.call_script(write, ("a",), (1,))


async def test_a_failing_callback_harms_nobody_else(redis: Redis) -> None:
    replies: list[Reply | Exception] = []

    def fail(reply: Reply | Exception) -> None:
        raise RuntimeError("broken callback")

    with capture_logs() as logs:
        redis.send(("PING",), fail)
        redis.send(("ECHO", "after"), replies.append)
        await wait_for(lambda: replies)
    assert replies == [b"after"]
    assert [entry["event"] for entry in logs] == ["redis.callback_failed"]
    assert redis.connected


async def test_a_callback_may_send(redis: Redis) -> None:
    done: asyncio.Future[Reply | Exception] = asyncio.get_running_loop().create_future()
    redis.send(("PING",), lambda _: redis.send(("ECHO", "second"), done.set_result))
    assert await asyncio.wait_for(done, 5) == b"second"


async def test_a_cancelled_or_late_call_leaves_the_order_intact(redis: Redis, prefix: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"0.05 s"):
        await redis.call("BLPOP", f"{prefix}:none", "0.2", timeout=0.05)
    task = asyncio.create_task(redis.call("ECHO", "cancelled"))
    await asyncio.sleep(0)
    task.cancel()
    assert await redis.call("ECHO", "next") == b"next"
    assert task.cancelled()


# ------------------------------------------------------------------------------- failures


async def test_too_many_pending_commands_are_refused(own: RedisServer) -> None:
    async with client(own.url, max_pending=10) as redis:
        own.pause()
        replies: list[Reply | Exception] = []
        for _ in range(15):
            redis.send(("PING",), replies.append)
        assert replies == []  # never from inside send
        await wait_for(lambda: len(replies) == 5)
        assert all(isinstance(reply, StoreUnavailable) for reply in replies)
        own.resume()
        await wait_for(lambda: len(replies) == 15)
        assert replies[5:] == [b"PONG"] * 10


async def test_bytes_that_cannot_leave_are_bounded(own: RedisServer) -> None:
    async with client(own.url, reply_timeout=30.0) as redis:
        own.pause()
        replies: list[Reply | Exception] = []
        value = b"x" * (1 << 20)
        for _ in range(300):
            redis.send(("ECHO", value), replies.append)
            await asyncio.sleep(0)
        await wait_for(lambda: replies)
        assert 150 < len(replies) < 300
        assert all("too many" in str(reply) for reply in replies)
        refused = len(replies)
        own.resume()
        await wait_for(lambda: len(replies) == 300, 30)
        assert replies[refused:] == [value] * (300 - refused)


async def test_a_silent_server_fails_everything_in_bounded_time(own: RedisServer) -> None:
    async with client(own.url, reply_timeout=0.3) as redis:
        lost: list[int] = []
        redis.on_lost = lambda: lost.append(1)
        own.pause()
        calls = [asyncio.create_task(redis.call("PING")) for _ in range(50)]
        done, late = await asyncio.wait(calls, timeout=5)
        assert not late
        assert all(isinstance(call.exception(), StoreUnavailable) for call in done)
        assert not redis.connected
        assert lost == [1]
        with pytest.raises(StoreUnavailable, match="not connected"):
            await redis.call("PING")
        own.resume()
        await wait_for(lambda: redis.connected)
        assert await redis.call("ECHO", "again") == b"again"


async def test_a_stall_of_our_own_is_not_the_servers_fault(own: RedisServer) -> None:
    async with client(own.url, reply_timeout=0.2) as redis:
        value = b"x" * 100_000
        replies: list[Reply | Exception] = []
        for _ in range(100):  # more than one read of the socket brings
            redis.send(("ECHO", value), replies.append)
        redis.send(("PING",), replies.append)
        await wait_for(lambda: replies)
        # Hold the loop, as a stopped process would; the replies wait in the socket meanwhile.
        time.sleep(0.5)  # noqa: ASYNC251 - that is what is tested
        await wait_for(lambda: len(replies) == 101)
        assert replies == [*[value] * 100, b"PONG"]
        assert redis.connections == 1


async def test_an_idle_connection_is_not_dropped(own: RedisServer) -> None:
    async with client(own.url, reply_timeout=0.1) as redis:
        await redis.call("PING")
        own.pause()
        await asyncio.sleep(0.4)  # longer than any deadline of this client
        own.resume()
        assert await redis.call("PING") == b"PONG"
        assert redis.connections == 1


async def test_a_killed_server_fails_what_is_in_flight_and_is_found_again(own: RedisServer) -> None:
    async with client(own.url) as redis:
        script = redis.register(ECHO)
        events: list[str] = []
        redis.on_connected = lambda: events.append("connected")
        redis.on_lost = lambda: events.append("lost")
        assert await redis.call("SET", "kept", "yes") == b"OK"
        own.pause()
        calls = [asyncio.create_task(redis.call("INCR", "n")) for _ in range(100)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        own.kill9()
        done, late = await asyncio.wait(calls, timeout=5)
        assert not late
        assert all(isinstance(call.exception(), StoreUnavailable) for call in done)
        own.start()
        await wait_for(lambda: redis.connected)
        assert events == ["lost", "connected"]
        assert await redis.call("GET", "kept") == b"yes"
        # Loaded by the handshake, not by the fallback.
        assert await redis.call("SCRIPT", "EXISTS", script.sha) == [1]
        assert await redis.call_script(script, ("k",), ("v",)) == [b"k", b"v"]


async def test_a_server_that_is_away_is_reported_and_then_waited_for(own: RedisServer) -> None:
    own.stop()
    redis = Redis(RedisAddress.parse(own.url), name="early")
    with pytest.raises(StoreUnavailable, match=r"no store at unix:///.* within 0.2 s"):
        await redis.start(0.2)
    starting = asyncio.create_task(redis.start(20))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(own.start)
    await starting
    assert redis.connected
    await redis.close()
    await redis.close()
    assert not redis.connected
    with pytest.raises(StoreUnavailable):
        await redis.call("PING")


@pytest.mark.parametrize("data", [b"!garbage\r\n", b"+OK\r\n+OK\r\n+OK\r\n+PONG\r\n+extra\r\n"])
async def test_malformed_data_drops_the_connection(data: bytes) -> None:
    served = asyncio.Event()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == b"CLIENT\r\n" or line == b"PING\r\n":
                writer.write(b"+OK\r\n")
            elif line == b"SPOIL\r\n":
                writer.write(data)
                served.set()
        writer.close()

    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    redis = Redis(RedisAddress.parse(f"redis://127.0.0.1:{port}"), name="x")
    await redis.start()
    lost = asyncio.Event()
    redis.on_lost = lost.set
    replies: list[Reply | Exception] = []
    redis.send(("SPOIL",), replies.append)
    redis.send(("SPOIL",), replies.append)
    await asyncio.wait_for(lost.wait(), 5)
    await wait_for(lambda: len(replies) == 2)
    assert served.is_set()
    await redis.close()
    server.close()
    await server.wait_closed()


# ------------------------------------------------------------------------ password and TLS


async def test_password_user_and_database(binary: Path) -> None:
    options = ["--requirepass", "geheim", "--user", "bob", "on", ">bobs", "~app:*", "+@all"]
    with redis_server(binary, tcp=True, options=options) as server:
        where = f"127.0.0.1:{server.port}"
        async with client(f"redis://:geheim@{where}/2") as redis:
            assert await redis.call("SET", "app:x", 1) == b"OK"
            assert b"db=2" in bytes(await redis.call("CLIENT", "INFO") or b"")  # type: ignore[arg-type] # a string reply
        async with client(f"redis://bob:bobs@{where}/2") as redis:
            assert await redis.call("ACL", "WHOAMI") == b"bob"
            assert await redis.call("GET", "app:x") == b"1"
            with pytest.raises(StoreError, match="NOPERM"):
                await redis.call("GET", "other")
        for login in (":wrong@", "bob:wrong@", ""):
            refused = Redis(RedisAddress.parse(f"redis://{login}{where}/2"), name="x")
            with capture_logs() as logs, pytest.raises(StoreUnavailable, match="refused us") as e:
                await refused.start(10)
            assert "wrong" not in str(e.value).replace("WRONGPASS", "")
            assert ":wrong" not in str(logs)
        with pytest.raises(StoreUnavailable, match="DB index"):
            await Redis(RedisAddress.parse(f"redis://:geheim@{where}/99"), name="x").start(10)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for the loopback interface, and its key."""
    if not shutil.which("openssl"):
        pytest.skip("makes its certificate with openssl")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [*make.split(), *names, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    return cert, key


async def test_tls_checks_the_certificate(certificate: tuple[Path, Path]) -> None:
    binary = redis_binaries().get("redis")
    if binary is None:
        pytest.skip("the server of the pip package is built without TLS")
    cert, key = certificate
    port = free_port()
    options = ["--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(cert)]
    options += ["--tls-cert-file", str(cert), "--tls-key-file", str(key)]
    with redis_server(binary, options=options):
        url = f"rediss://127.0.0.1:{port}/0"
        async with client(f"{url}?ssl_ca_certs={cert}") as redis:
            assert await redis.call("ECHO", "sealed") == b"sealed"
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            await Redis(RedisAddress.parse(url), name="x").start(0.5)


async def test_the_reason_is_told_also_when_time_runs_out_in_the_next_attempt() -> None:
    """The first connection is cut, the second is left hanging."""
    cut = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cut
        if cut:
            await reader.read()
        cut = True
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(StoreUnavailable, match="within") as caught:
            await Redis(RedisAddress.parse(f"redis://127.0.0.1:{port}/0"), name="x").start(0.5)
    assert caught.value.__cause__ is not None
    assert not str(caught.value).endswith("None")


# ------------------------------------------------------------------------------- pub/sub


async def test_a_subscriber_hears_its_channels(redis: Redis, shared: RedisServer) -> None:
    heard: list[tuple[bytes, bytes]] = []
    listener = Subscriber(
        RedisAddress.parse(shared.url), ["a1", "b1"], lambda c, m: heard.append((c, m)), name="s"
    )
    await listener.start()
    for number in range(100):
        assert await redis.call("PUBLISH", "a1" if number % 2 else "b1", number) == 1
    await redis.call("PUBLISH", "c1", "not for us")
    await wait_for(lambda: len(heard) == 100)
    assert heard == [(b"a1" if n % 2 else b"b1", str(n).encode()) for n in range(100)]
    await listener.close()
    async with asyncio.timeout(10):  # the server sees the end of a connection in its own time
        while await redis.call("PUBLISH", "a1", "x"):  # noqa: ASYNC110  # the server's state
            await asyncio.sleep(0.005)


async def test_a_subscriber_subscribes_again_after_a_restart(own: RedisServer) -> None:
    heard: list[bytes] = []
    events: list[str] = []

    def on_message(channel: bytes, payload: bytes) -> None:
        heard.append(payload)
        if payload == b"bad":
            raise RuntimeError("broken listener")

    listener = Subscriber(RedisAddress.parse(own.url), ["c"], on_message, name="s")
    listener.on_connected = lambda: events.append("connected")
    listener.on_lost = lambda: events.append("lost")
    await listener.start()
    async with client(own.url) as redis:
        own.kill9()
        await wait_for(lambda: not listener.connected)
        own.start()
        await wait_for(lambda: listener.connected and redis.connected)
        assert events == ["connected", "lost", "connected"]
        for payload in ("bad", "good"):
            assert await redis.call("PUBLISH", "c", payload) == 1
        await wait_for(lambda: heard == [b"bad", b"good"])
    await listener.close()


async def test_a_subscriber_notices_a_dead_peer(own: RedisServer) -> None:
    listener = Subscriber(
        RedisAddress.parse(own.url), ["c"], lambda c, m: None, name="s", ping_interval=0.1
    )
    await listener.start()
    await asyncio.sleep(0.5)  # several rounds of PING on a healthy connection
    assert listener.connections == 1
    own.pause()
    await wait_for(lambda: not listener.connected)
    own.resume()
    await wait_for(lambda: listener.connected)
    await listener.close()


async def test_a_port_nobody_serves_is_named_without_the_password() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = RedisAddress.parse(f"redis://:geheim@127.0.0.1:{silent.getsockname()[1]}/0")
        with pytest.raises(StoreUnavailable, match=r"no store at redis://:\*\*\*@") as error:
            await Redis(address, name="x").start(0.2)
    assert "geheim" not in str(error.value)
