"""Signals: immutable values that travel between wires and the core.

Named tuples rather than frozen dataclasses: several are made for every request, and a frozen
dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from acks.headers import AckOptions

if TYPE_CHECKING:
    from acks.fields import Selector
    from acks.preconditions import Preconditions

JsonObject = dict[str, Any]
_EMPTY: Mapping[str, Any] = MappingProxyType({})


class Command(NamedTuple):
    """A change to a twin, as a wire read it.

    ``path`` is the JSON pointer inside the thing, ``()`` for the whole thing; ``value`` parsed
    JSON; ``headers`` what travels on with the signal; ``subjects`` the requester's subjects, the
    first of them its own; ``policy`` the one to create a thing with; ``origin`` the session that
    sent it (it does not get its own event back). ``action`` is put, create, merge or delete;
    ``answer_to`` is where acks go if not to the node that took the command; ``allow_lockout``: the
    policy to create may be one that the requester, or anybody, cannot change; ``assigned`` is what
    the journal says of label groups, ``search`` the token of who asks for ``search-persisted``
    (acks/search_acks.py), 0 for nobody.
    """

    thing_id: str
    path: tuple[str, ...]
    value: Any
    correlation_id: str
    options: AckOptions
    subjects: tuple[str, ...]
    headers: Mapping[str, str] = _EMPTY
    policy: JsonObject | None = None
    origin: str | None = None
    action: str = "put"
    checks: Preconditions | None = None
    answer_to: str = ""
    allow_lockout: bool = False
    assigned: Mapping[str, str] = _EMPTY
    search: int = 0


class Query(NamedTuple):
    """A question about a twin or a part of it; ``fields`` selects what of it is wanted."""

    thing_id: str
    path: tuple[str, ...]
    correlation_id: str
    timeout_ms: int
    subjects: tuple[str, ...]
    fields: Selector | None = None
    checks: Preconditions | None = None


class Live(NamedTuple):
    """A message, live command or live event: delivered to subscribers, answered by one of them.

    ``criterion`` is messages, commands or events; ``action`` the message's subject, or create,
    modify, merge, delete, retrieve, or created, modified, merged, deleted; ``path`` as in the
    envelope (``/inbox/messages/ask``); ``value`` its payload as in the envelope: JSON, binary data
    in base64, None for none; ``headers`` what the envelope shows beside the headers of ``options``;
    ``fields`` what a retrieve asks for; ``revision`` and ``timestamp`` what an event says of
    itself, if it does; ``assigned`` as of a command.
    """

    thing_id: str
    criterion: str
    action: str
    path: str
    value: Any
    correlation_id: str
    options: AckOptions
    subjects: tuple[str, ...]
    headers: Mapping[str, Any] = _EMPTY
    origin: str | None = None
    checks: Preconditions | None = None
    answer_to: str = ""
    fields: str = ""
    revision: int = 0
    timestamp: str = ""
    assigned: Mapping[str, str] = _EMPTY


class Acknowledgement(NamedTuple):
    """Label + status + payload for one correlation-id. A payload of None is no payload."""

    label: str
    thing_id: str
    correlation_id: str
    status: int
    payload: Any = None
    headers: Mapping[str, Any] = _EMPTY

    @property
    def success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def weak(self) -> bool:
        """Whether it was issued by us because the signal did not concern the label's owner."""
        return str(self.headers.get("ditto-weak-ack", "")).lower() == "true"


class Response(NamedTuple):
    """What processing a command gave: status, entity (None: no body) and its headers."""

    status: int
    payload: Any
    headers: Mapping[str, Any]
