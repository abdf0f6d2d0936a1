"""Drivers are closed in time, whatever they do; a connection is tried out (spec 4.6, dry-run)."""

from __future__ import annotations

import asyncio

import structlog

from connections.driver import Driver, DriverFactory, Limits, OpenError
from connections.model import Connection

log = structlog.get_logger(__name__)

LOST_GRACE_S = 2.0
"""For closing a driver whose broker is gone, in seconds."""
SLACK_S = 1.0
"""How much longer than its grace a driver's close is waited for."""


async def close_driver(
    driver: Driver, grace_s: float, deadlines: set[asyncio.Timeout] | None = None
) -> None:
    """Close a driver in ``grace_s`` and a second; what goes wrong is logged.

    ``deadlines`` has the deadline as long as it counts, for who wants it to come earlier.
    """
    deadlines = set() if deadlines is None else deadlines
    try:
        async with asyncio.timeout(grace_s + SLACK_S) as deadline:
            deadlines.add(deadline)
            try:
                await driver.close(grace_s)
            finally:
                deadlines.discard(deadline)
    except TimeoutError:
        log.warning("connection.not_closed_in_time", driver=type(driver).__name__)
    except Exception:
        log.exception("connection.close_failed", driver=type(driver).__name__)


async def probe(
    connection: Connection, factory: DriverFactory, timeout_s: float = 10.0
) -> str | OpenError:
    """Open a client and close it again (dry-run); what it consumes meanwhile stays unsettled.

    A text that says what has worked, or the reason why it cannot be opened, or why one of its
    addresses cannot be used. Never raises but on cancellation; takes at most ``timeout_s`` and some
    seconds for closing.
    """
    driver: Driver | None = None
    ill: dict[tuple[str, str], str] = {}

    def on_status(kind: str, address: str, well: bool, details: str) -> None:
        if well:
            ill.pop((kind, address), None)
        else:
            ill[kind, address] = details

    try:
        driver = factory(connection, 0, 1, Limits(in_flight=1))
        async with asyncio.timeout(timeout_s):
            await driver.open(_nothing, _nothing, on_status)
        if ill:
            why = (f"The {kind} {address}: {text}" for (kind, address), text in ill.items())
            return OpenError("misconfigured", " ".join(why))
    except OpenError as problem:
        return problem
    except TimeoutError:
        return OpenError("temporary", f"No connection within {timeout_s:g} s.")
    except Exception as problem:
        log.exception("connection.probe_failed", connection=connection.id)
        return OpenError("temporary", f"Encountered <{type(problem).__name__}>.")
    finally:
        if driver is not None:
            await close_driver(driver, LOST_GRACE_S)
    return "The connection was opened and closed again."


def _nothing(*_: object) -> None:
    """Leave a message unsettled, or a loss unnoticed."""
