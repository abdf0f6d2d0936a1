"""What a request shows of its sender."""

from __future__ import annotations

from typing import NamedTuple

PRE_AUTHENTICATED = "x-ditto-pre-authenticated"
"""Header or query parameter by which a proxy says who sends a request (spec websocket-... 5.1)."""
ACCESS_TOKEN = "access_token"  # noqa: S105 - a name
"""Query parameter of a WebSocket upgrade with a JWT: browsers cannot set its headers."""


class Presented(NamedTuple):
    """What there is besides the header ``Authorization``, or instead of it.

    ``subjects`` is the header, ``query_subjects`` the query parameter that names subjects; ``peer``
    is the address of the other end of the connection, None if it has none.
    """

    authorization: bytes | None
    access_token: str | None
    subjects: str | None
    query_subjects: str | None
    peer: str | None


Evidence = bytes | Presented | None
"""The header ``Authorization`` where that is all, as in nearly every request."""
