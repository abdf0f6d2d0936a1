"""The vectors of declarations: who may own a label beside whom (spec acks-and-http 1.6)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers import RedisServer
from tests.store.test_labels import registry
from tests.vectors import load


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("given", "expected"), [p for p in load("label-declaration") if "existing" in p.values[0]]
)
async def test_declaration(
    shared: RedisServer, prefix: str, given: dict[str, Any], expected: dict[str, Any], nodes: int
) -> None:
    """In one process, and with the new subscriber in another one than those before."""
    async with registry(shared, prefix, "a") as (a, _), registry(shared, prefix, "b") as (b, _):

        async def declare(at: Any, subscriber: str, want: dict[str, Any]) -> bool:
            taken: str | None = await at.claim(subscriber, want["labels"], want["group"] or "")
            return taken is None

        for number, want in enumerate(given["existing"]):
            assert await declare(a, f"{want['sub']}-{number}", want)
        want = given["declare"]
        done = await declare(a if nodes == 1 else b, f"{want['sub']}-new", want)
        assert done == (expected["result"] == "declared")
        assert expected.get("status", 200) == (200 if done else 409)
