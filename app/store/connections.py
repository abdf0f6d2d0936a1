"""Connections in the store: documents, who runs their clients, and what these report.

Documents are few and change rarely: every change counts a version and publishes the connection's
id. A client of a connection is run by at most one node at a time: it holds a lease, whose
generation is greater than that of every lease before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import orjson

from acks.errors import GatewayError, error
from acks.signals import JsonObject
from app.store.redis_client import Redis, RedisAddress, Reply, StoreError, Subscriber

MOST = 100
"""Connections in one store: what one answer of the API lists (spec websocket-... 4.6)."""
COMMANDS = ("resetConnectionMetrics", "enableConnectionLogs", "resetConnectionLogs")
"""What can be told to running clients (spec 4.6, without the prefix)."""
_ID = re.compile(r"[a-zA-Z0-9_:-]{1,100}")
_TRIES = 5  # when somebody else changes the same document


@dataclass(frozen=True, slots=True)
class StoredConnection:
    """A document as it is in the store.

    ``revision`` counts its own changes from 1. ``commands`` says when each command was given last
    (ms since the epoch of the store's clock, greater every time): a client carries those out that
    it has not seen yet.
    """

    id: str
    document: JsonObject
    revision: int
    commands: dict[str, int] = field(default_factory=dict)


Stored = list[StoredConnection]
_Items = list[Reply]
_Reports = list[JsonObject]


class ConnectionStore:
    """The connections of all gateways with one store and one prefix.

    All methods raise StoreUnavailable and StoreError; a node's name contains no line end.
    """

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._base = f"{prefix}:{{connections}}"
        self._channel = f"{self._base}:version"
        self._keys = (
            f"{self._base}:documents",
            f"{self._base}:revisions",
            f"{self._base}:commands",
            self._channel,
        )
        self._documents = redis.register(_script("connections.lua"))
        self._clients = redis.register(_script("connection_clients.lua"))

    # --- documents

    async def create(self, document: JsonObject, most: int = MOST) -> int:
        """Store a new document under its ``id``; returns its revision, 1.

        Raises ``connectivity:connection.conflict`` if the id is taken, or if there are ``most``.
        """
        connection_id = _checked(document["id"])
        done = await self._ask("create", connection_id, orjson.dumps(document), most)
        if done == -1:
            raise error(
                "connectivity:connection.conflict",
                message=f"There are {most} connections already, which is the most there can be.",
                description="Delete one first.",
            )
        if done != 1:
            raise error("connectivity:connection.conflict", connection_id=connection_id)
        return 1

    async def get(self, connection_id: str) -> StoredConnection | None:
        """The document as it is now, None if there is none."""
        reply = _items(await self._ask("read", _checked(connection_id)))
        if not reply:
            return None
        _, document, revision, commands = reply
        given = {name: int(when) for name, when in _pairs(commands)}
        return StoredConnection(connection_id, _json(document), int(_text(revision)), given)

    async def list(self) -> Stored:
        """All documents, in the order of their ids."""
        return (await self.snapshot())[1]

    async def snapshot(self) -> tuple[int, Stored]:
        """The version, and all documents as they were at that version."""
        reply = _items(await self._ask("list", ""))
        version, documents, revisions, commands = reply
        known = dict(_pairs(revisions))
        given: dict[str, dict[str, int]] = {}
        for key, when in _pairs(commands):
            connection_id, _, name = key.partition("/")
            given.setdefault(connection_id, {})[name] = int(when)
        found = [
            StoredConnection(name, orjson.loads(text), int(known.get(name, 1)), given.get(name, {}))
            for name, text in sorted(_pairs(documents))
        ]
        return int(_text(version)), found

    async def replace(
        self, connection_id: str, document: JsonObject, revision: int | None = None
    ) -> int | None:
        """Store another document in the place of one; None if there is none.

        With ``revision`` only if it is still at that one; raises
        ``connectivity:connection.conflict`` if it is not. Returns the new revision.
        """
        if document["id"] != connection_id:
            raise ValueError("the document is of another connection")
        done = await self._ask(
            "replace",
            _checked(connection_id),
            orjson.dumps(document),
            "" if revision is None else revision,
        )
        if done == -1:
            raise _changed(connection_id)
        assert isinstance(done, int)
        return done or None

    async def delete(self, connection_id: str) -> bool:
        """Remove a document; False if there is none."""
        return await self._ask("delete", _checked(connection_id)) == 1

    async def set_open(self, connection_id: str, is_open: bool) -> int | None:
        """Say whether a connection is meant to be open; its new revision, None if there is none.

        Raises ``connectivity:connection.conflict`` if others change it all the time.
        """
        status = "open" if is_open else "closed"
        for _ in range(_TRIES):
            stored = await self.get(connection_id)
            if stored is None:
                return None
            document = {**stored.document, "connectionStatus": status}
            try:
                return await self.replace(connection_id, document, stored.revision)
            except GatewayError:
                continue
        raise _changed(connection_id)

    async def command(self, connection_id: str, name: str) -> int | None:
        """Tell the running clients one of :data:`COMMANDS`; when that was (ms since the epoch).

        None if there is no such connection.
        """
        if name not in COMMANDS:
            raise ValueError(f"{name} is not a command of running clients")
        given = await self._ask("command", _checked(connection_id), name)
        assert isinstance(given, int)
        return given or None

    # --- changes

    async def version(self) -> int:
        """Changes with every change of any document, and with every command."""
        reply = await self._redis.call("GET", self._channel)
        return 0 if reply is None else int(_text(reply))

    def watch(
        self, address: RedisAddress, on_change: Callable[[str], None], *, node: str
    ) -> Subscriber:
        """A subscriber, not yet started, that calls ``on_change`` with the id of what changed.

        With "" after every connect, for changes may have been missed. Notices can be lost: look at
        :meth:`version` from time to time, too. The caller starts and closes it.
        """
        subscriber = Subscriber(
            address,
            [self._channel],
            lambda _, name: on_change(name.decode("utf-8", "replace")),
            name=f"ackgate-connections-{node}",
        )
        subscriber.on_connected = lambda: on_change("")
        return subscriber

    # --- clients

    async def present(self, node: str, ttl_ms: int) -> None:
        """Count a node among those that run connections for ``ttl_ms``; with 0 no longer."""
        keys = self._client_keys("-")  # it is about all connections
        await self._redis.call_script(self._clients, keys, ("present", "", node, ttl_ms))

    async def claim(
        self, connection_id: str, client: int, node: str, ttl_ms: int, clients: int = 0
    ) -> int:
        """Take the lease of a client for ``ttl_ms``; its generation, 0 if another node has it.

        A node that has it already gets a new one, and the old one is over. -1 if the node has its
        share of the connection's ``clients``, as many as each of the :meth:`present` nodes can
        have; 0 ``clients``: it may have them all.
        """
        return await self._client("claim", connection_id, client, node, ttl_ms, clients)

    async def surplus(self, connection_id: str, client: int, node: str, clients: int) -> bool:
        """Whether a node has more than its share of the clients, and this one is its last."""
        return await self._client("surplus", connection_id, client, node, clients) == 1

    async def renew(
        self, connection_id: str, client: int, node: str, generation: int, ttl_ms: int
    ) -> bool:
        """Make a lease last for ``ttl_ms`` from now on; False if it is over."""
        return await self._client("renew", connection_id, client, node, ttl_ms, generation) == 1

    async def release(self, connection_id: str, client: int, node: str, generation: int) -> bool:
        """End a lease; False if it was over."""
        return await self._client("release", connection_id, client, node, generation) == 1

    async def owners(self, connection_id: str) -> dict[int, str]:
        """Client -> node that runs it."""
        reply = await self._about("owners", connection_id)
        flat = [_text(item) for item in reply]
        return {int(client): node for client, node in zip(flat[::3], flat[1::3], strict=True)}

    async def report(
        self, connection_id: str, client: int, node: str, report: JsonObject, ttl_ms: int
    ) -> bool:
        """Say how a client is doing, which counts for ``ttl_ms``.

        False if another node has the client: then it is not for us to say.
        """
        text = orjson.dumps(report)
        return await self._client("report", connection_id, client, node, ttl_ms, text) == 1

    async def reports(self, connection_id: str) -> _Reports:
        """What the clients of a connection said last, by their numbers."""
        found = [_json(text) for text in await self._about("reports", connection_id)]
        return sorted(found, key=lambda report: int(report.get("client", 0)))

    # --- how

    async def _ask(self, operation: str, connection_id: str, *more: str | bytes | int) -> Reply:
        arguments = (operation, connection_id, *more)
        return await self._redis.call_script(self._documents, self._keys, arguments)

    def _client_keys(self, connection_id: str) -> tuple[str, ...]:
        name = _checked(connection_id)
        base = self._base
        return (
            f"{base}:leases:{name}",
            f"{base}:reports:{name}",
            f"{base}:generation",
            f"{base}:runners",
        )

    async def _client(
        self,
        operation: str,
        connection_id: str,
        client: int,
        node: str,
        *more: str | bytes | int,
    ) -> int:
        keys = self._client_keys(connection_id)
        reply = await self._redis.call_script(self._clients, keys, (operation, client, node, *more))
        assert isinstance(reply, int)
        return reply

    async def _about(self, operation: str, connection_id: str) -> _Items:
        keys = self._client_keys(connection_id)
        reply = await self._redis.call_script(self._clients, keys, (operation, ""))
        return _items(reply)


def is_connection_id(text: str) -> bool:
    """Whether a connection may be called so (spec 4.1)."""
    return _ID.fullmatch(text) is not None


def _script(name: str) -> str:
    return files("app.store").joinpath(name).read_text(encoding="utf-8")


def _checked(connection_id: str) -> str:
    """Ids become parts of keys; whoever lets others in has refused them before."""
    if not is_connection_id(connection_id):
        raise ValueError(f"{connection_id!r} is not an id of a connection")
    return connection_id


def _changed(connection_id: str) -> GatewayError:
    return error(
        "connectivity:connection.conflict",
        message=f"The connection with ID '{connection_id}' has been changed by somebody else.",
        description="Read it again and apply your change to it.",
    )


def _text(reply: Reply) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _items(reply: Reply) -> _Items:
    if not isinstance(reply, list):
        raise StoreError("the store's answer about connections is malformed")
    return reply


def _pairs(reply: Reply) -> list[tuple[str, str]]:
    flat = [_text(item) for item in _items(reply)]
    return list(zip(flat[::2], flat[1::2], strict=True))


def _json(reply: Reply) -> Any:
    if not isinstance(reply, bytes):
        raise StoreError("a document in the store is malformed")
    return orjson.loads(reply)
