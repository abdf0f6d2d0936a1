"""Gateways with a search index in either database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.gateways import Gateway, running
from tests.postgres import postgres_here
from tests.servers import RedisServer

INDEXES = ("sqlite", "postgresql")


@contextmanager
def searched(index: str, place: Path, store: RedisServer) -> Iterator[Gateway]:
    """A gateway whose index is new; skips the test if its database is not here."""
    setting = index
    with ExitStack() as stack:
        if index == "postgresql":
            setting = stack.enter_context(postgres_here()).database()
        prefix = f"{place.name}-{index}"
        gateway = Gateway(place, redis_url=store.url, prefix=prefix, search_index=setting)
        stack.enter_context(running(gateway))
        yield gateway
