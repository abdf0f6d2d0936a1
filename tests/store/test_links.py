"""Links between processes, over real sockets and a real store."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from acks.journal import link_key
from app import link_wire, links
from app.link_wire import MAC, MAGIC, MAX_FRAME, NONCE
from app.links import Links
from app.store.redis_client import Redis
from tests.servers import wait_for

Start = Callable[..., Any]
NODE_NUMBERS = iter(range(10**6))


class Node:
    """A Links with what it got."""

    def __init__(self, redis: Redis, prefix: str, listen: str) -> None:
        self.name = f"n{next(NODE_NUMBERS)}"
        self.got: list[bytes] = []
        self.links = Links(redis, prefix=prefix, node=self.name, listen=listen)
        self.links.on_frame = self.take
        self._redis = redis
        self._key = link_key(prefix, self.name)

    def take(self, content: memoryview) -> bool:
        self.got.append(bytes(content))
        return self.got[-1] != b"unreadable"

    async def announced(self) -> dict[str, Any]:
        """What it has announced, once it has."""
        async with asyncio.timeout(10):
            while (text := await self._redis.call("GET", self._key)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert isinstance(text, bytes)
        facts: dict[str, Any] = orjson.loads(text)
        return facts

    async def link_to(self, other: Node | str) -> None:
        """Have a link to ``other``."""
        name = other if isinstance(other, str) else other.name
        if isinstance(other, Node):
            await other.announced()
        assert self.links.send(name, b"no link yet") is False
        await wait_for(lambda: len(self.links) == 1, 10, "a link")


@pytest.fixture
async def start(redis: Redis, prefix: str) -> AsyncIterator[Start]:
    nodes: list[Node] = []

    async def start(listen: str = "auto") -> Node:
        nodes.append(Node(redis, prefix, listen))
        await nodes[-1].links.start()
        return nodes[-1]

    yield start
    for node in nodes:
        await node.links.close()


class Raw:
    """A caller that writes what the test wants."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes
    ) -> None:
        self.reader, self.writer, self.secret = reader, writer, secret

    @classmethod
    @asynccontextmanager
    async def call(cls, node: Node) -> AsyncIterator[Raw]:
        facts = await node.announced()
        reader, writer = await asyncio.open_unix_connection(facts["unix"])
        try:
            yield cls(reader, writer, bytes.fromhex(facts["secret"]))
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.readexactly(size)

    async def proof(self, secret: bytes | None = None) -> tuple[bytes, bytes]:
        """Read the greeting; the right answer to it, and what the listener must answer then."""
        greeting = await self.read(len(MAGIC) + NONCE)
        assert greeting.startswith(MAGIC)
        listener, caller = greeting[len(MAGIC) :], os.urandom(NONCE)
        key = secret or self.secret
        client = hmac.digest(key, b"client" + listener + caller, hashlib.sha256)
        server = hmac.digest(key, b"server" + listener + caller, hashlib.sha256)
        return MAGIC + caller + client, server

    async def join(self) -> None:
        proof, expected = await self.proof()
        self.writer.write(proof)
        assert await self.read(MAC) == expected

    async def ended(self) -> bool:
        """Whether the listener closes and says nothing more."""
        try:
            async with asyncio.timeout(10):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


async def test_frames_of_all_sizes_arrive_in_order(start: Start) -> None:
    a, b = await start(), await start()
    await b.link_to(a)
    sent = [bytes([size % 251]) * size for size in (0, 1, 3, 4, 5, 1000, 65_535, 65_536, 900_000)]
    for content in sent:
        assert b.links.send(a.name, content) is True
    await wait_for(lambda: len(a.got) == len(sent))
    assert a.got == sent
    assert len(a.links) == 0  # a link carries frames one way
    await a.link_to(b)
    assert a.links.send(b.name, b"back") is True
    await wait_for(lambda: b.got == [b"back"])


async def test_frames_may_be_cut_anywhere(start: Start) -> None:
    node = await start()
    contents = [b"", b"x", b"four", b"longer than a length"]
    stream = b"".join(map(frame, contents))
    async with Raw.call(node) as raw:
        proof, _ = await raw.proof()
        for byte in proof:
            raw.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await raw.read(MAC)
        for byte in stream:
            raw.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await wait_for(lambda: node.got == contents)
    # The same without a socket, so that each cut is where it is meant to be.
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            got: list[bytes] = []
            end = known_end(got)
            for part in (stream[:first], stream[first:second], stream[second:]):
                if part:
                    end.data_received(part)
            assert got == contents, (first, second)


def known_end(got: list[bytes]) -> link_wire.Incoming:
    def take(content: memoryview) -> bool:
        got.append(bytes(content))
        return True

    end = link_wire.Incoming(b"s" * 32, take, set(), 1)
    end._known = True
    return end


async def test_who_does_not_know_the_secret_is_refused_and_nothing_is_delivered(
    start: Start,
) -> None:
    node = await start()
    with capture_logs() as logs:
        async with Raw.call(node) as raw:
            proof, _ = await raw.proof(secret=b"x" * 32)
            raw.writer.write(proof + frame(b"evil"))
            assert await raw.ended()
        async with Raw.call(node) as raw:
            proof, _ = await raw.proof(secret=b"x" * 32)
            raw.writer.write(proof)
            assert await raw.ended()
            secret = raw.secret
        async with Raw.call(node) as raw:
            await raw.join()
            raw.writer.write(frame(b"good"))
            await wait_for(lambda: node.got)
    assert node.got == [b"good"]
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "links.refused"
    ] * 2
    assert secret.hex() not in str(logs)
    assert repr(secret) not in str(logs)


async def test_a_proof_is_good_for_one_connection_only(start: Start) -> None:
    node = await start()
    async with Raw.call(node) as raw, Raw.call(node) as other:
        proof, _ = await raw.proof()
        await other.proof()
        other.writer.write(proof)
        assert await other.ended()


async def test_the_first_wrong_byte_ends_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_wire, "STEP", 600.0)
    node = await start()
    async with Raw.call(node) as raw:
        await raw.proof()
        raw.writer.write(MAGIC[:3] + b"?")
        assert await raw.ended()


async def test_who_says_nothing_is_not_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_wire, "STEP", 0.05)
    node = await start()
    async with Raw.call(node) as raw:
        await raw.proof()
        raw.writer.write(MAGIC)
        assert await raw.ended()


@pytest.mark.parametrize(
    "last", [(MAX_FRAME + 1).to_bytes(4, "big") + b"x", frame(b"unreadable")], ids=["big", "bad"]
)
async def test_a_frame_that_is_too_large_or_unreadable_ends_the_link(
    start: Start, last: bytes
) -> None:
    node = await start()
    with capture_logs() as logs:
        async with Raw.call(node) as raw:
            await raw.join()
            raw.writer.write(frame(b"good") + last + frame(b"late"))
            assert await raw.ended()
    assert b"late" not in node.got
    assert node.got[0] == b"good"
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["links.broken"]


async def test_an_error_of_the_receiver_does_not_end_the_link(start: Start) -> None:
    node = await start()
    take = node.links.on_frame

    def fails(content: memoryview) -> bool:
        take(content)
        raise RuntimeError("one bad frame")

    node.links.on_frame = fails
    async with Raw.call(node) as raw:
        await raw.join()
        raw.writer.write(frame(b"one") + frame(b"two"))
        await wait_for(lambda: node.got == [b"one", b"two"])


async def test_more_links_than_allowed_are_not_taken(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_LINKS", 1)
    node, caller = await start(), await start()
    async with Raw.call(node) as first:
        await first.join()
        async with Raw.call(node) as second:
            assert await second.ended()
        first.writer.write(frame(b"still there"))
        await wait_for(lambda: node.got)
    await caller.link_to(node)
    third = await start()
    await third.announced()
    assert caller.links.send(third.name, b"one too many") is False
    assert caller.links._peers[third.name].task is None


async def test_a_peer_that_stops_leaves_no_link_and_no_trace(
    start: Start, redis: Redis, prefix: str
) -> None:
    a, b = await start(), await start()
    await b.link_to(a)
    place = Path((await a.announced())["unix"]).parent
    assert place.stat().st_mode & 0o777 == 0o700
    assert b.links.send(a.name, b"last") is True
    await wait_for(lambda: a.got == [b"last"])
    await a.links.close()
    await wait_for(lambda: len(b.links) == 0)
    assert b.links.send(a.name, b"lost") is False
    assert await redis.call("GET", link_key(prefix, a.name)) is None
    assert not place.exists()


async def test_sockets_of_killed_processes_are_cleared_away_and_those_of_living_ones_are_not(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", tempfile.mkdtemp(prefix="t-"))
    place = Path(tempfile.gettempdir())
    try:
        living = await start()
        dead, young, foreign = (place / f"{links.DIRECTORY}{name}" for name in "dyf")
        for directory in (dead, young, foreign):
            directory.mkdir()
        for directory in (dead, young):
            with socket.socket(socket.AF_UNIX) as left_behind:
                left_behind.bind(str(directory / links.SOCKET))
        (foreign / links.SOCKET).write_text("a file")
        ours = Path((await living.announced())["unix"])
        for path in (dead / links.SOCKET, foreign / links.SOCKET, ours):
            os.utime(path, (0, 0))
        other = await start()
        assert not dead.exists()
        assert young.exists()
        assert foreign.exists()
        await other.link_to(living)
    finally:
        shutil.rmtree(place)


async def test_what_was_sent_before_the_end_arrives(start: Start) -> None:
    a, b = await start(), await start()
    await b.link_to(a)
    content = b"x" * 900_000
    assert b.links.send(a.name, content) is True
    await b.links.close()
    await wait_for(lambda: a.got == [content])


async def test_a_process_that_announces_but_is_gone_is_not_called_again_and_again(
    start: Start, redis: Redis, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "FIRST_DELAY", 60.0)
    caller = await start()
    nowhere = {"unix": str(tmp_path / "gone"), "secret": "00" * 32}
    await redis.call("SET", link_key(prefix, "gone"), orjson.dumps(nowhere))
    calls = 0
    call = redis.call

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += args[0] == "GET"
        return await call(*args, **options)

    monkeypatch.setattr(redis, "call", counted)
    for _ in range(50):
        assert caller.links.send("gone", b"x") is False
        await call("PING")
    await wait_for(lambda: caller.links._peers["gone"].task is None)
    assert caller.links.send("gone", b"x") is False
    assert calls == 1


@pytest.mark.parametrize(
    "text",
    [b"nonsense", b"[]", b'{"unix": 5}', b'{"unix": "/x", "secret": "abc"}', b'{"secret": "00"}'],
)
async def test_an_unreadable_announcement_gives_no_link(
    start: Start, redis: Redis, prefix: str, text: bytes
) -> None:
    caller = await start()
    await redis.call("SET", link_key(prefix, "odd"), text)
    with capture_logs() as logs:
        assert caller.links.send("odd", b"x") is False
        await wait_for(lambda: caller.links._peers["odd"].task is None)
    assert len(caller.links) == 0
    assert [entry["event"] for entry in logs] == ["links.not_opened"]


class Fake:
    """A listener under a test's control; it answers the handshake with ``secret``."""

    def __init__(self, place: Path, secret: bytes) -> None:
        self.path, self.secret, self.calls = str(place / "s"), secret, 0
        self.heard: list[bytes] = []
        self.hold = asyncio.Event()

    @asynccontextmanager
    async def running(self, redis: Redis, prefix: str, announced: bytes) -> AsyncIterator[None]:
        text = orjson.dumps({"unix": self.path, "secret": announced.hex()})
        await redis.call("SET", link_key(prefix, "fake"), text)
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield
        finally:
            self.hold.set()
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        try:
            nonce = os.urandom(NONCE)
            writer.write(MAGIC + nonce)
            answer = await reader.readexactly(len(MAGIC) + NONCE + MAC)
            caller = answer[len(MAGIC) : len(MAGIC) + NONCE]
            writer.write(hmac.digest(self.secret, b"server" + nonce + caller, hashlib.sha256))
            await self.hold.wait()
            self.heard.append(await reader.read(100))
        finally:
            writer.close()


async def test_a_listener_that_does_not_know_the_secret_gets_nothing(
    start: Start, redis: Redis, prefix: str, tmp_path: Path
) -> None:
    caller, fake = await start(), Fake(tmp_path, b"w" * 32)
    fake.hold.set()
    async with fake.running(redis, prefix, announced=b"r" * 32):
        assert caller.links.send("fake", b"secret ack") is False
        await wait_for(lambda: fake.heard)
        await wait_for(lambda: caller.links._peers["fake"].task is None)
        assert caller.links.send("fake", b"secret ack") is False
    assert len(caller.links) == 0
    assert fake.heard == [b""]


async def test_a_peer_that_does_not_read_gets_no_more_than_the_bound(
    start: Start, redis: Redis, prefix: str, tmp_path: Path
) -> None:
    caller, fake = await start(), Fake(tmp_path, b"r" * 32)
    async with fake.running(redis, prefix, announced=b"r" * 32):
        await caller.link_to("fake")
        content, taken = b"x" * 100_000, 0
        while caller.links.send("fake", content):
            taken += 1
            assert taken < 1000
            await asyncio.sleep(0)
        link = caller.links._open["fake"]
        assert link._transport is not None
        unsent = link._transport.get_write_buffer_size()
        assert link_wire.MAX_UNSENT < unsent <= link_wire.MAX_UNSENT + len(content) + 4
        assert len(caller.links) == 1


async def test_a_frame_that_is_too_large_goes_another_way(start: Start) -> None:
    a, b = await start(), await start()
    await b.link_to(a)
    assert b.links.send(a.name, b"x" * (MAX_FRAME + 1)) is False
    assert b.links.send(a.name, b"small") is True
    await wait_for(lambda: a.got == [b"small"])


async def test_an_idle_link_is_closed_and_a_new_one_made_when_needed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ANNOUNCE_EVERY", 0.01)
    monkeypatch.setattr(links, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(links, "IDLE_ROUNDS", 2)
    a, b = await start(), await start()
    for _ in range(2):
        await a.announced()
        await wait_for(lambda: b.links.send(a.name, b"x"))
        await wait_for(lambda: len(b.links) == 0)


async def test_the_announcement_expires_and_is_renewed(
    start: Start, redis: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ANNOUNCE_EVERY", 0.01)
    node = await start()
    first = await node.announced()
    left = await redis.call("PTTL", link_key(prefix, node.name))
    assert isinstance(left, int)
    assert 0 < left <= links.ANNOUNCED_MS
    await redis.call("DEL", link_key(prefix, node.name))
    assert await node.announced() == first


async def test_off_neither_listens_nor_calls(start: Start, redis: Redis, prefix: str) -> None:
    on, off = await start(), await start("off")
    await on.announced()
    assert off.links.send(on.name, b"x") is False
    assert off.links._peers == {}
    assert await redis.call("GET", link_key(prefix, off.name)) is None
    assert on.links.send(off.name, b"x") is False
    await wait_for(lambda: on.links._peers[off.name].task is None)
    assert len(on.links) == len(off.links) == 0


async def test_other_machines_call_by_tcp(start: Start, redis: Redis, prefix: str) -> None:
    a, b = await start("127.0.0.1:0"), await start()
    facts = await a.announced()
    assert set(facts) == {"unix", "tcp", "secret"}
    assert facts["tcp"][0] == "127.0.0.1"
    facts["unix"] = "/on/another/machine"
    await redis.call("SET", link_key(prefix, a.name), orjson.dumps(facts))
    await b.link_to(a)
    assert b.links.send(a.name, b"by tcp") is True
    await wait_for(lambda: a.got == [b"by tcp"])


async def test_an_address_in_use_gives_a_warning_and_the_rest_works(start: Start) -> None:
    first = await start("127.0.0.1:0")
    port = (await first.announced())["tcp"][1]
    with capture_logs() as logs:
        second = await start(f"127.0.0.1:{port}")
    assert [entry["event"] for entry in logs] == ["links.not_listening"]
    assert set(await second.announced()) == {"unix", "secret"}
    await first.link_to(second)


async def test_nowhere_to_listen_is_no_reason_not_to_call(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> str:
        raise OSError("no space")

    listening = await start()
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.mkdtemp", full)
        node = await start()
    await node.link_to(listening)
    assert node.links.send(listening.name, b"x") is True
    await wait_for(lambda: listening.got == [b"x"])
