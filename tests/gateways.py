"""Real gateway processes for tests, and small clients: HTTP, WebSocket subscriber, raw HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from app.store.embedded import ends_with_parent
from tests.servers import free_port, wait_for, wait_for_sync

ROOT = Path(__file__).parents[1]
START_WAIT = 30.0
STOP_WAIT = 30.0
PASSWORDS = {"ditto": "ditto", "user2": "user2", "devops": "foobar"}

Json = dict[str, Any]
AckFor = Callable[[Json, str], Mapping[str, Any] | None]
"""(event, label) -> fields of the ack (``status``, ``value``, ``headers``); None: no ack."""
Respond = Callable[[Json], Mapping[str, Any] | None]
"""live signal -> fields of the response, as for an ack; None: no response."""

_direct = build_opener(ProxyHandler({}))


def environment(**settings: str) -> dict[str, str]:
    """This process's environment with ``settings`` as the only ones of ackgate."""
    outer = {k: v for k, v in os.environ.items() if not k.upper().startswith("ACKGATE_")}
    outer["PYTHONPATH"] = str(ROOT)
    return outer | {f"ACKGATE_{name.upper()}": value for name, value in settings.items()}


def new_id(namespace: str = "org.example") -> str:
    """A thing id nobody has used."""
    return f"{namespace}:t{uuid.uuid4().hex[:12]}"


def new_label() -> str:
    """A label nobody has declared."""
    return f"test:{uuid.uuid4().hex[:10]}"


def basic(user: str, password: str | None = None) -> str:
    """The value of an Authorization header."""
    pair = f"{user}:{PASSWORDS[user] if password is None else password}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


class Gateway:
    """A gateway process under a test's control; its data and log are in ``directory``.

    Without ``redis_url`` it has its embedded store. ``settings`` are fields of the settings. It has
    a search index only if they say so: most tests need none, and each has a process of its own.
    """

    def __init__(
        self,
        directory: Path,
        *,
        redis_url: str | None = None,
        port: int | None = None,
        options: Sequence[str] = ("--dev",),
        **settings: str,
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.log_file = directory / f"gateway-{self.port}.log"
        self._command = [sys.executable, "-m", "app", "serve", "--port", str(self.port), *options]
        if redis_url is not None:
            self._command += ["--redis-url", redis_url]
        self._command += ["--data-dir", str(directory / "data")]
        self._env = environment(**{"log_format": "json", "search_index": "off", **settings})
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def child(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._child is not None, "the gateway is not running"
        return self._child

    @property
    def log(self) -> str:
        """Everything it has written, over all its starts."""
        return self.log_file.read_text(errors="replace")

    def events(self, name: str) -> list[Json]:
        """Its log entries with this event name."""
        lines = (line for line in self.log.splitlines() if line.startswith("{"))
        entries = (json.loads(line) for line in lines)
        return [entry for entry in entries if entry.get("event") == name]

    def children(self) -> list[int]:
        """Process ids of its children: the embedded store, or the workers."""
        file = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children")
        return [int(pid) for pid in file.read_text().split()]

    def store_pid(self) -> int:
        """Process id of its embedded store."""
        for pid in self.children():
            if b"valkey" in (line := _cmdline(pid)) or b"redis" in line:
                return pid
        raise AssertionError("no embedded store runs")

    def indexer_pid(self) -> int | None:
        """Process id of what keeps its search index, None while there is none."""
        return next((pid for pid in self.children() if b"app.search.child" in _cmdline(pid)), None)

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        assert self._child is None
        with self.log_file.open("ab") as log:
            self._child = subprocess.Popen(
                self._command,
                env=self._env,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=ends_with_parent(),  # noqa: PLW1509 - two plain system calls
            )

    def start(self) -> None:
        """Start, and block until it is ready."""
        self.spawn()
        wait_for_sync(self.is_ready, START_WAIT, "start of a gateway")

    async def start_async(self) -> None:
        """As :meth:`start`, letting the event loop run."""
        self.spawn()
        await wait_for(self.is_ready, START_WAIT, "start of a gateway")

    def is_ready(self) -> bool:
        """Whether ``/health/ready`` says 200; AssertionError if the process has ended."""
        if self.child.poll() is not None:
            raise AssertionError(f"the gateway ended ({self.child.returncode}): {self.log[-3000:]}")
        return self.health() == 200

    def health(self, path: str = "/health/ready") -> int | None:
        """Status of a health path, None if nothing answers."""
        try:
            with _direct.open(self.url + path, timeout=2) as answer:
                return int(answer.status)
        except httpx_like_errors as problem:
            status = getattr(problem, "code", None)
            close = getattr(problem, "close", None)
            if close is not None:
                close()
            return status

    def terminate(self) -> None:
        """Ask it to end; it drains first."""
        self.child.send_signal(signal.SIGTERM)

    def wait(self, deadline: float = STOP_WAIT) -> int:
        """Block until it has ended; its exit code."""
        child, self._child = self.child, None
        try:
            return child.wait(deadline)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise

    async def ended(self, deadline: float = STOP_WAIT) -> int:
        """As :meth:`wait`, letting the event loop run."""
        await wait_for(lambda: self.child.poll() is not None, deadline, "end of a gateway")
        return self.wait()

    def stop(self) -> int | None:
        """End it in peace if it runs, even if it is paused; its exit code."""
        if self._child is None:
            return None
        if self._child.poll() is None:
            self.resume()
            self.terminate()
        return self.wait()

    def kill9(self) -> None:
        """End it without warning."""
        self.child.kill()
        self.wait()

    def pause(self) -> None:
        """Stop the process: its sockets stay open and nothing answers."""
        os.kill(self.child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        os.kill(self.child.pid, signal.SIGCONT)


httpx_like_errors = (OSError,)  # urllib's HTTPError and URLError are OSErrors


def alive(pid: int) -> bool:
    """Whether the process is there and not a zombie that nobody has waited for."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def running(*gateways: Gateway) -> Iterator[None]:
    """All of them started together and ready; stopped at the end."""
    try:
        for gateway in gateways:
            gateway.spawn()
        for gateway in gateways:
            wait_for_sync(gateway.is_ready, START_WAIT, "start of a gateway")
        yield
    finally:
        for gateway in gateways:
            gateway.stop()


# --- HTTP ----------------------------------------------------------------------------------------


def http(gateway: Gateway, user: str | None = "ditto", timeout: float = 30.0) -> httpx.AsyncClient:
    """A client of this gateway; ``user`` None: without credentials."""
    headers = {} if user is None else {"authorization": basic(user)}
    return httpx.AsyncClient(
        base_url=gateway.url, headers=headers, timeout=timeout, trust_env=False, verify=False
    )


def thing(thing_id: str, path: str = "") -> str:
    """URL path of a thing or of something below it; ``path`` as it is sent."""
    return f"/api/2/things/{quote(thing_id, safe=':')}{path}"


async def revision(client: httpx.AsyncClient, thing_id: str) -> int:
    """The thing's revision, 0 if it is not there."""
    answer = await client.get(thing(thing_id))
    return int(answer.headers["entity-revision"]) if answer.status_code == 200 else 0


def check_error(answer: httpx.Response, status: int, code: str) -> Json:
    """Assert that it is this error of the catalogue, and return its JSON."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body: Json = answer.json()
    assert (body["status"], body["error"]) == (status, code)
    assert body["message"]
    assert list(body)[:3] == ["status", "error", "message"]
    return body


class RawHttp:
    """One TCP connection on which a test writes what it wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def open(cls, gateway: Gateway) -> AsyncIterator[RawHttp]:
        """Connect; closed at the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):  # the gateway may have reset it: some tests are about that
                await writer.wait_closed()

    async def send(self, data: bytes) -> None:
        """Write and wait until it has left."""
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, deadline: float = 10.0) -> tuple[int, dict[str, str], bytes]:
        """Read one answer with a content-length: status, headers, body."""
        async with asyncio.timeout(deadline):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            headers = {}
            for line in lines[1:]:
                name, _, value = line.partition(":")
                if name:
                    headers[name.lower()] = value.strip()
            length = int(headers.get("content-length", "0"))
            body = await self.reader.readexactly(length) if length else b""
            return int(lines[0].split(" ")[1]), headers, body

    async def at_end(self, deadline: float = 10.0) -> bool:
        """Whether the gateway has closed the connection and sent nothing more."""
        async with asyncio.timeout(deadline):
            return await self.reader.read(1) == b""


def put_request(
    thing_id: str, body: bytes, *lines: str, path: str = "", version: str = "1.1", query: str = ""
) -> bytes:
    """A PUT as bytes, with Host, credentials, content-type and content-length."""
    head = [
        f"PUT {thing(thing_id, path)}{query} HTTP/{version}",
        "Host: gateway.test",
        f"Authorization: {basic('ditto')}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *lines,
    ]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


# --- WebSocket -----------------------------------------------------------------------------------


def ack_all(event: Json, label: str) -> Json:
    """Acknowledge everything with 200."""
    return {"status": 200, "value": {"label": label}}


class Subscriber:
    """A WebSocket subscriber that collects what it gets, and acknowledges by ``ack``."""

    def __init__(
        self, connection: ClientConnection, ack: AckFor | None, respond: Respond | None = None
    ) -> None:
        self.connection = connection
        self.texts: list[str] = []
        self.events: list[Json] = []
        self.errors: list[Json] = []
        self._ack = ack
        self._respond = respond
        self._reader = asyncio.create_task(self._read(), name="test-subscriber")

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        gateway: Gateway,
        *labels: str,
        user: str = "ditto",
        ack: AckFor | None = None,
        respond: Respond | None = None,
        start: str | None = "START-SEND-EVENTS",
        group: str | None = None,
    ) -> AsyncIterator[Subscriber]:
        """Connect, declare ``labels`` and send ``start``; returns when that is acknowledged."""
        query = f"?declared-acks={quote(','.join(labels), safe=':,')}" if labels else ""
        query += "" if group is None else f"&ack-group={group}"
        async with ws_connect(gateway, f"/ws/2{query}", user=user) as connection:
            subscriber = cls(connection, ack, respond)
            try:
                if start is not None:
                    await subscriber.command(start)
                yield subscriber
            finally:
                subscriber._reader.cancel()
                await asyncio.gather(subscriber._reader, return_exceptions=True)

    async def command(self, text: str) -> None:
        """Send a text command and wait for its ``:ACK``."""
        wanted = f"{text.partition('?')[0]}:ACK"
        before = self.texts.count(wanted)
        await self.connection.send(text)
        await wait_for(lambda: self.texts.count(wanted) > before, 10, f"{wanted}, {self.errors}")

    async def send(self, envelope: Json | str) -> None:
        """Send a frame."""
        text = envelope if isinstance(envelope, str) else json.dumps(envelope)
        await self.connection.send(text)

    async def event(self, index: int = -1, count: int = 1, deadline: float = 10.0) -> Json:
        """The event at ``index`` once there are at least ``count``."""
        await wait_for(lambda: len(self.events) >= count, deadline, f"{count} events")
        return self.events[index]

    async def error(self, count: int = 1) -> Json:
        """The newest error envelope once there are at least ``count``."""
        await wait_for(lambda: len(self.errors) >= count, 10, f"{count} errors")
        return self.errors[-1]

    async def nothing_came(self) -> None:
        """Assert that no event, error or text came for what was sent before this call.

        Frames are handled and answered in their order, so the answer to a STOP of a type that is
        not served comes after everything else.
        """
        events, errors, texts = len(self.events), len(self.errors), len(self.texts)
        await self.command("STOP-SEND-LIVE-EVENTS")
        assert self.events[events:] == []
        assert self.errors[errors:] == []
        assert len(self.texts) == texts + 1

    async def closed(self, deadline: float = 10.0) -> tuple[int | None, str]:
        """Wait for the end of the connection: close code and reason."""
        async with asyncio.timeout(deadline):
            await asyncio.wait((self._reader,))
        return self.connection.close_code, self.connection.close_reason or ""

    async def _read(self) -> None:
        try:
            async for frame in self.connection:
                assert isinstance(frame, str)
                await self._take(frame)
        except ConnectionClosed:
            pass

    async def _take(self, frame: str) -> None:
        if not frame.startswith("{"):
            self.texts.append(frame)
            return
        envelope = json.loads(frame)
        if envelope["topic"].endswith("/errors"):
            self.errors.append(envelope)
            return
        self.events.append(envelope)
        if self._ack is not None:
            for label in envelope["headers"].get("requested-acks", []):
                fields = self._ack(envelope, label)
                if fields is not None:
                    await self.send(ack_envelope(envelope, label, **fields))
        if self._respond is not None:
            fields = self._respond(envelope)
            if fields is not None:
                await self.send(response_envelope(envelope, **fields))


def ack_envelope(event: Json, label: str, **fields: Any) -> Json:
    """The envelope that acknowledges ``event`` for ``label``; ``headers`` are added to the id."""
    topic = "/".join(event["topic"].split("/")[:4])
    headers = {"correlation-id": event["headers"]["correlation-id"], **fields.pop("headers", {})}
    return {"topic": f"{topic}/acks/{label}", "headers": headers, "path": "/", **fields}


def response_envelope(signal: Json, **fields: Any) -> Json:
    """The envelope that answers a live signal; ``headers`` are added to the id."""
    headers = {"correlation-id": signal["headers"]["correlation-id"], **fields.pop("headers", {})}
    return {"topic": signal["topic"], "headers": headers, "path": signal["path"], **fields}


def ws_connect(
    gateway: Gateway,
    path: str = "/ws/2",
    *,
    user: str | None = "ditto",
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> connect:
    """The ``websockets`` client's connect for a path of this gateway."""
    sent = {} if user is None else {"Authorization": basic(user)}
    return connect(
        f"ws://127.0.0.1:{gateway.port}{path}",
        additional_headers={**sent, **(headers or {})},
        proxy=None,
        open_timeout=10,
        close_timeout=5,
        compression=None,
        **options,
    )


def revisions_in(entries: Sequence[Json], thing_id: str) -> list[int]:
    """Revisions of one thing in journal metas, in their order."""
    return [meta["r"] for meta in entries if meta["id"] == thing_id]


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
