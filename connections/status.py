"""Where a client stands, and its addresses: the status answers (spec websocket-... 4.6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import structlog

from connections.driver import Cause
from connections.ledger import Category, Ledger, iso, plain
from connections.model import Connection

log = structlog.get_logger(__name__)


class State(Enum):
    """Where a client stands."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    LOST = "lost"  # could not be opened, or the broker is gone; opened again after a while
    CLOSING = "closing"


_LIVE = {State.CLOSED: "closed", State.OPEN: "open"}


class Status:
    """The state of one client, what it is called, and how its addresses are.

    ``on_change`` is told when anything of it has changed.
    """

    def __init__(
        self,
        connection: Connection,
        client: str,
        ledger: Ledger,
        on_change: Callable[[], None] | None,
    ) -> None:
        self.state = State.CLOSED
        self._id = connection.id
        self._failover = connection.failover
        self._client = client
        self._ledger = ledger
        self._on_change = on_change
        self._since = time.time()
        self._connected: float | None = None
        self._details = "The connection has not been opened yet."
        self._live = "unknown"  # while it is not open
        self._addresses: dict[tuple[str, str], tuple[bool, str, float] | None] = {}
        for source in connection.sources:
            self._addresses |= {("source", address): None for address in source.addresses}
        self._addresses |= {("target", target.address): None for target in connection.targets}

    def turn(self, state: State, details: str) -> None:
        """Be in this state from now on."""
        now = time.time()
        if state is not self.state:
            self._since = now
            log.info(
                "connection.state", connection=self._id, client=self._client, state=state.value
            )
        if state is State.CLOSING:  # until it is closed it is what it was
            self._live = _LIVE.get(self.state, self._live)
        self.state = state
        self._details = plain(details)
        self._connected = now if state is State.OPEN else None
        if state is State.OPENING:
            self._addresses = dict.fromkeys(self._addresses)
        elif state is State.OPEN:
            self._live = "unknown"
        self._ledger.log(now, "connection", "other", state is not State.LOST, details)
        self._changed()

    def failed(self, cause: Cause, reason: str) -> None:
        """It could not be opened, or was lost, for this reason."""
        self._live = "failed" if cause == "temporary" else "misconfigured"
        log.warning(
            "connection.lost", connection=self._id, client=self._client, cause=cause, reason=reason
        )
        self.turn(State.LOST, reason)

    def addressed(self, kind: str, address: str, well: bool, details: str) -> None:
        """Note how a configured address is; others are ignored."""
        if (kind, address) not in self._addresses:
            return
        now = time.time()
        details = details or ("It can be used." if well else "It cannot be used.")
        self._addresses[kind, address] = (well, plain(details), now)
        category: Category = "source" if kind == "source" else "target"
        self._ledger.log(now, category, "other", well, details, address=address)
        self._changed()

    def _changed(self) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change()
        except Exception:
            log.exception("connection.listener_failed", connection=self._id)

    def to_json(self, unsettled: int = 0) -> dict[str, Any]:
        """The status part of the report; ``unsettled``: messages that the client has."""
        live = _LIVE.get(self.state, self._live)
        recovery = "unknown"
        if self.state is State.OPEN:
            recovery = "succeeded"
        elif self._failover and self.state in (State.OPENING, State.LOST):
            recovery = "ongoing"
        own = {
            "type": "client",
            "client": self._client,
            "status": live,
            "recoveryStatus": recovery,
            "statusDetails": self._details,
            "inStateSince": iso(self._since),
            "unsettled": unsettled,
        }
        return {
            "liveStatus": live,
            "recoveryStatus": recovery,
            "connectedSince": iso(self._connected),
            "clientStatus": [own],
            "sourceStatus": self._of("source", live),
            "targetStatus": self._of("target", live),
        }

    def _of(self, kind: str, live: str) -> list[dict[str, Any]]:
        """The addresses of a kind: as the driver has said, otherwise as the client itself."""
        entries = []
        for (one, address), known in self._addresses.items():
            if one != kind:
                continue
            status, details, since = live, self._details, self._since
            if known is not None and self.state is State.OPEN:
                status, details, since = "open" if known[0] else "failed", known[1], known[2]
            entries.append(
                {
                    "type": kind,
                    "client": self._client,
                    "address": address,
                    "status": status,
                    "statusDetails": details,
                    "inStateSince": iso(since),
                }
            )
        return entries
