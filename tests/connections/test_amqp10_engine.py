"""The engine of AMQP 1.0 and the network."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip(
    "proton", reason="AMQP 1.0 needs the extra amqp10 (python-qpid-proton, built by a C compiler)"
)

from connections.amqp10.engine import connected
from connections.model import Uri
from tests.brokers.peers import connection_of
from tests.connections.listening import listening


async def test_a_defect_ends_the_connection_and_is_told() -> None:
    def on_event(event: Any) -> None:
        raise ZeroDivisionError

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(listen) as port:
        uri = Uri("amqp", "127.0.0.1", port)
        engine = await connected(connection_of("amqp-10", uri, ["in"], []), 0, None, on_event)
        async with asyncio.timeout(5):
            gone = await engine.gone
        assert (gone.cause, str(gone)) == ("temporary", "Encountered <ZeroDivisionError>.")
