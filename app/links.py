"""Links: acks go from process to process without the store, which is busy with fsync.

Every process listens and announces in the store, under a key that expires, where and with which
secret. Who has frames for a process asks the store for that, calls it in the background, and keeps
the link. As long as there is none, :meth:`Links.send` says so and pub/sub carries the frame
(docs/decisions/0007-acks-over-direct-links.md).
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import orjson
import structlog

from acks.journal import link_key
from app.link_wire import SECRET, STEP, Incoming, LinkRefused, OnFrame, Outgoing, parse_listen
from app.store.redis_client import Redis, StoreError, StoreUnavailable

ANNOUNCE_EVERY = 20.0  # seconds
ANNOUNCED_MS = 60_000
FIRST_DELAY, LAST_DELAY = 1.0, 60.0
"""Seconds between two calls of one peer, doubling."""
IDLE_ROUNDS = 15
"""Rounds of ANNOUNCE_EVERY after which a link that carried nothing is closed."""
MAX_LINKS = 256
"""Links in each direction."""
MAX_PEERS = 4 * MAX_LINKS
"""Processes of which is known when to call them again."""
DIRECTORY, SOCKET = "ackgate-link-", "s"
YOUNG = 60.0  # seconds
MAX_PATH = 100  # bytes; the kernel takes 107, some systems less
DEAD_PEER_MS = 5_000
"""After this time without an answer from another machine's kernel a link is given up, ms."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Peer:
    """A process that was called: the task while it lasts, and when it may be called again."""

    delay: float = 0.0
    retry_at: float = 0.0
    since: float = 0.0
    task: asyncio.Task[None] | None = None


class Links:
    """Links of one process, both ways. ``listen`` is the setting ``link``.

    ``on_frame`` is to be set before :meth:`start`; it takes the frames of other processes. With
    ``calls_only`` nobody can call this one.
    """

    def __init__(
        self, redis: Redis, *, prefix: str, node: str, listen: str, calls_only: bool = False
    ) -> None:
        self.on_frame: OnFrame = lambda _: True
        self._redis = redis
        self._prefix = prefix
        self._node = node
        self._tcp = parse_listen(listen)
        self._on = listen != "off"
        self._calls_only = calls_only
        self._started = False
        self._secret = secrets.token_bytes(SECRET)
        self._incoming: set[Incoming] = set()
        self._open: dict[str, Outgoing] = {}
        self._peers: dict[str, _Peer] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._directory: Path | None = None
        self._announcement: dict[str, object] = {}
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Open links on which this process sends."""
        return len(self._open)

    async def start(self) -> None:
        """Listen and announce it. What cannot listen gives a warning and is done without."""
        if not self._on:
            return
        self._started = True
        if not self._calls_only:
            await self._listen()
        self._task = asyncio.create_task(self._keep(), name="links")

    async def _listen(self) -> None:
        try:
            await self._listen_unix()
        except OSError as problem:
            log.warning("links.not_listening", address="unix", reason=str(problem))
        if self._tcp is not None:
            try:
                await self._listen_tcp(*self._tcp)
            except OSError as problem:
                address = "{}:{}".format(*self._tcp)
                log.warning("links.not_listening", address=address, reason=str(problem))

    async def close(self) -> None:
        """Take the announcement back, and close everything. Safe to call twice."""
        if not self._started:
            return
        self._started = False
        tasks = [peer.task for peer in self._peers.values() if peer.task is not None]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._announcement:
            with suppress(StoreUnavailable, StoreError):  # it expires
                await self._redis.call("DEL", link_key(self._prefix, self._node), timeout=STEP)
        for server in self._servers:
            server.close()
        ends = [*self._open.values(), *self._incoming]
        for end in ends:
            end.close()
        if ends:
            await asyncio.wait([end.gone for end in ends], timeout=STEP)
        for end in ends:
            end.abort()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def send(self, node: str, content: bytes) -> bool:
        """Send a frame to ``node``; False: there is no link (yet) that takes it. Never raises."""
        link = self._open.get(node)
        if link is not None:
            return link.send(content)
        if self._started:
            self._call(node)
        return False

    # --- listening

    def _accept(self) -> Incoming:
        return Incoming(self._secret, self._frame, self._incoming, MAX_LINKS)

    def _frame(self, content: memoryview) -> bool:
        try:
            return self.on_frame(content)
        except Exception:
            # The next frame may be better, and this one is no fault of the connection.
            log.exception("links.listener_failed")
            return True

    async def _listen_unix(self) -> None:
        self._directory = _private_directory()
        path = str(self._directory / SOCKET)
        server = await asyncio.get_running_loop().create_unix_server(self._accept, path)
        self._servers.append(server)
        self._announcement["unix"] = path

    async def _listen_tcp(self, host: str, port: int) -> None:
        server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        self._servers.append(server)
        # Of a name with several addresses only the first one's port can be told.
        bound = server.sockets[0].getsockname()[1]
        self._announcement["tcp"] = [host, bound]

    async def _keep(self) -> None:
        while True:
            if self._announcement:
                text = orjson.dumps({**self._announcement, "secret": self._secret.hex()})
                key = link_key(self._prefix, self._node)
                try:
                    await self._redis.call("SET", key, text, "PX", ANNOUNCED_MS, timeout=STEP)
                except (StoreUnavailable, StoreError) as problem:
                    log.debug("links.not_announced", reason=str(problem))
            await asyncio.sleep(ANNOUNCE_EVERY)
            self._tidy(asyncio.get_running_loop().time())

    def _tidy(self, now: float) -> None:
        for link in list(self._open.values()):
            link.idle = 0 if link.used else link.idle + 1
            link.used = False
            if link.idle >= IDLE_ROUNDS:
                link.close()
        for node, peer in list(self._peers.items()):
            if peer.task is None and node not in self._open and now > peer.retry_at + LAST_DELAY:
                del self._peers[node]

    # --- calling

    def _call(self, node: str) -> None:
        now = asyncio.get_running_loop().time()
        peer = self._peers.get(node)
        if peer is None:
            # Each peer may become a link, so this bounds calls and links together.
            if len(self._peers) >= MAX_PEERS:
                return
            peer = self._peers[node] = _Peer()
        if peer.task is not None or now < peer.retry_at:
            return
        calls = sum(other.task is not None for other in self._peers.values())
        if len(self._open) + calls >= MAX_LINKS:
            peer.retry_at = now + LAST_DELAY
            return
        peer.delay = min(max(peer.delay * 2, FIRST_DELAY), LAST_DELAY)
        peer.task = asyncio.create_task(self._dial(node, peer), name=f"link-to-{node}")

    async def _dial(self, node: str, peer: _Peer) -> None:
        loop = asyncio.get_running_loop()
        try:
            link = await self._connect(node, peer)
            if link.alive:
                peer.since = loop.time()
                self._open[node] = link
                log.debug("links.opened", peer=node)
        except (OSError, TimeoutError, LinkRefused, StoreUnavailable, StoreError) as problem:
            log.debug("links.not_opened", peer=node, reason=str(problem) or repr(problem))
        except Exception:
            log.exception("links.not_opened", peer=node)
        finally:
            peer.task = None
            peer.retry_at = loop.time() + peer.delay

    async def _connect(self, node: str, peer: _Peer) -> Outgoing:
        text = await self._redis.call("GET", link_key(self._prefix, node), timeout=STEP)
        if not isinstance(text, bytes):
            raise LinkRefused("it has announced no link")
        path, address, secret = _read(text)
        link: Outgoing

        def new() -> Outgoing:
            return Outgoing(secret, lambda link: self._ended(node, peer, link))

        loop = asyncio.get_running_loop()
        async with asyncio.timeout(STEP):
            if path is not None and (address is None or os.path.exists(path)):  # noqa: ASYNC240
                _, link = await loop.create_unix_connection(new, path)
            elif address is not None:
                transport, link = await loop.create_connection(new, *address)
                _notice_death(transport.get_extra_info("socket"))
            else:
                raise LinkRefused("its announcement has no address")
        try:
            async with asyncio.timeout(STEP):
                await link.ready
        except BaseException:
            link.abort()
            raise
        return link

    def _ended(self, node: str, peer: _Peer, link: Outgoing) -> None:
        if self._open.get(node) is not link:
            return
        del self._open[node]
        now = asyncio.get_running_loop().time()
        if now - peer.since > LAST_DELAY:
            peer.delay = 0.0
        peer.retry_at = now + peer.delay
        log.debug("links.closed", peer=node)


def _private_directory() -> Path:
    """A new directory for the socket that nobody else may enter (mode 0700)."""
    for place in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - the first may be too long
        path = Path(tempfile.mkdtemp(prefix=DIRECTORY, dir=place))
        _clear_away(Path(place))
        if len(os.fsencode(path / SOCKET)) <= MAX_PATH:
            return path
        path.rmdir()
    raise OSError("no temporary directory with a path that is short enough for a socket")


def _clear_away(place: Path) -> None:
    """Remove what processes of this user that were killed have left in ``place``."""
    for path in islice(place.glob(f"{DIRECTORY}*/{SOCKET}"), 1000):
        with suppress(OSError):
            about = path.lstat()
            # Between its bind and its listen a new socket refuses, so a young one is left alone.
            old = about.st_mtime < time.time() - YOUNG
            if old and about.st_uid == os.getuid() and stat.S_ISSOCK(about.st_mode):
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.setblocking(False)
                    refused = probe.connect_ex(str(path)) == errno.ECONNREFUSED
                if refused:
                    shutil.rmtree(path.parent, ignore_errors=True)


def _read(text: bytes) -> tuple[str | None, tuple[str, int] | None, bytes]:
    """Socket path, TCP address and secret of an announcement; its text never gets into errors."""
    try:
        facts = orjson.loads(text)
        path, address = facts.get("unix"), facts.get("tcp")
        secret = bytes.fromhex(facts["secret"])
        if address is not None:
            address = str(address[0]), int(address[1])
        if len(secret) != SECRET or not (path is None or isinstance(path, str)):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise LinkRefused("its announcement cannot be read") from None
    return path, address, secret


def _notice_death(connection: socket.socket) -> None:
    """Have the kernel notice soon that the other machine is gone (where it can be told so)."""
    with suppress(OSError):  # the link works without
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_USER_TIMEOUT", DEAD_PEER_MS),
            ("TCP_KEEPIDLE", DEAD_PEER_MS // 1000),
            ("TCP_KEEPINTVL", DEAD_PEER_MS // 1000),
        ):
            option = getattr(socket, name, None)
            if option is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
