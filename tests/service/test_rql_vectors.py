"""The vectors of RQL on the wire: as the condition of a request, and as the filter of events."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx

from tests.gateways import Gateway, Json, Subscriber, ack_all, new_id, new_label, thing
from tests.vectors import load

PARTS = ("attributes", "features", "definition")
GIVEN_BY_US = (
    "thingId", "policyId", "_namespace", "_revision", "_created", "_modified", "_metadata", "time:",
)  # fmt: skip
"""What a filter names that is not as the vector's thing has it."""


def vectors() -> list[tuple[str, Json, bool]]:
    """Filter, the parts of the thing that can be sent, and whether it fits."""
    found = []
    for vector in load("rql.match"):
        given, expected = vector.values
        if not any(name in given["filter"] for name in GIVEN_BY_US):
            body = {name: one for name, one in given["thing"].items() if name in PARTS}
            found.append((given["filter"], body, expected))
    return found


class Things:
    """A thing for each body."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._ids: dict[str, str] = {}

    def id_of(self, body: Json) -> str:
        """The id of its thing."""
        return self._ids.setdefault(json.dumps(body, sort_keys=True), new_id())

    async def put(self, body: Json, label: str = "twin-persisted") -> httpx.Response:
        """Put this into its thing; the answer."""
        headers = {"requested-acks": label}
        answer = await self._client.put(thing(self.id_of(body)), json=body, headers=headers)
        assert answer.is_success
        return answer


async def test_conditions(client: httpx.AsyncClient) -> None:
    things = Things(client)
    wrong: list[Any] = []
    for text, body, expected in vectors():
        await things.put(body)
        answer = await client.get(thing(things.id_of(body)), params={"condition": text})
        if answer.status_code != (200 if expected else 412):
            wrong.append((text, expected, answer.text))
    assert wrong == []


async def test_filters_of_events(gateway: Gateway, client: httpx.AsyncClient) -> None:
    """What does not fit is acknowledged weakly, so nothing has to be waited for."""
    label, things = new_label(), Things(client)
    wrong: list[Any] = []
    async with Subscriber.open(gateway, label, ack=ack_all, start=None) as subscriber:
        for text, body, expected in vectors():
            await subscriber.command(f"START-SEND-EVENTS?filter={quote(text, safe='')}")
            answer = await things.put(body, label)
            if ("ditto-weak-ack" in answer.headers) == expected:
                wrong.append((text, expected))
    assert wrong == []
