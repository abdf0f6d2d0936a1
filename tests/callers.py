"""A WebSocket client that sends commands and waits for their answers."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.gateways import Gateway, Json, ws_connect
from tests.servers import wait_for


class Caller:
    """One connection; ``frames`` are all envelopes that came, ``texts`` all other frames."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[Json] = []
        self.texts: list[str] = []
        self._reader = asyncio.create_task(self._read(), name="test-caller")

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        gateway: Gateway,
        query: str = "",
        *,
        user: str = "ditto",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Caller]:
        """Connect; ``query`` and ``headers`` are those of the upgrade request."""
        path = f"/ws/2{query}"
        async with ws_connect(
            gateway, path, user=user, headers=headers, max_size=None
        ) as connection:
            caller = cls(connection)
            try:
                yield caller
            finally:
                caller._reader.cancel()
                await asyncio.gather(caller._reader, return_exceptions=True)

    async def send(self, envelope: Json | str) -> None:
        """Send a frame."""
        text = envelope if isinstance(envelope, str) else json.dumps(envelope)
        await self.connection.send(text)

    async def ask(self, topic: str, path: str = "/", /, **fields: Any) -> Json:
        """Send a command and wait for its answer; ``headers`` are completed by a new id."""
        return await self.answer(await self.tell(topic, path, **fields))

    async def tell(self, topic: str, path: str = "/", /, **fields: Any) -> str:
        """Send a command; its correlation-id."""
        headers = {"correlation-id": uuid.uuid4().hex, **fields.pop("headers", {})}
        await self.send({"topic": topic, "headers": headers, "path": path, **fields})
        return str(headers["correlation-id"])

    async def answer(self, correlation_id: str, count: int = 1, deadline: float = 15.0) -> Json:
        """The last of the first ``count`` frames with this correlation-id."""
        await wait_for(
            lambda: len(self.answers(correlation_id)) >= count,
            deadline,
            f"an answer, got {self.frames[-3:]}",
        )
        return self.answers(correlation_id)[count - 1]

    def answers(self, correlation_id: str) -> list[Json]:
        """All frames with this correlation-id."""
        return [f for f in self.frames if f["headers"].get("correlation-id") == correlation_id]

    async def command(self, text: str) -> None:
        """Send a text command and wait for its ``:ACK``."""
        wanted = f"{text.partition('?')[0]}:ACK"
        before = self.texts.count(wanted)
        await self.send(text)
        await wait_for(lambda: self.texts.count(wanted) > before, 10, f"{wanted}: {self.frames}")

    async def nothing_came(self, frames: int = 0) -> None:
        """Assert that no more than ``frames`` came for what was sent and processed before.

        Answered in order with a query that is sent now.
        """
        await self.ask("no/thing/things/twin/commands/retrieve")
        assert len(self.frames) == frames + 1, self.frames

    async def closed(self, deadline: float = 10.0) -> int | None:
        """Wait for the end of the connection: its close code."""
        async with asyncio.timeout(deadline):
            await asyncio.wait((self._reader,))
        return self.connection.close_code

    async def _read(self) -> None:
        try:
            async for frame in self.connection:
                assert isinstance(frame, str)
                if frame.startswith("{"):
                    self.frames.append(json.loads(frame))
                else:
                    self.texts.append(frame)
        except ConnectionClosed:
            pass


def topic_of(
    thing_id: str, action: str = "", channel: str = "twin", criterion: str = "commands"
) -> str:
    """``ns/name/things/twin/commands/modify``."""
    namespace, _, name = thing_id.partition(":")
    return f"{namespace}/{name}/things/{channel}/{criterion}/{action}".rstrip("/")


def check_error(frame: Json, status: int, code: str) -> Json:
    """Assert that it is this error of the catalogue; its JSON."""
    value: Json = frame["value"]
    assert frame["topic"].endswith("/errors"), frame
    assert (frame["status"], value["status"], value["error"]) == (status, status, code), frame
    assert frame["path"] == "/"
    assert frame["headers"]["content-type"] == "application/json"
    assert frame["headers"]["response-required"] is False
    return value
