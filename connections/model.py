"""Connections as they are configured: a broker, what is consumed from it, what is sent to it.

Values only; connections/documents/validation.py makes them of documents (spec websocket-... 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["amqp-091", "amqp-10", "mqtt", "mqtt-5", "kafka", "http-push"]
Mappers = tuple[str, ...]
DRY_RUN = "-dry-run"
"""How the id of a connection ends that is only tried (spec 4.6)."""
HTTP_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""With which a target of HTTP push can begin, as in ``POST:/path``."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    # A dataclass of Python 3.11 takes no default that cannot be hashed.
    return _NOTHING


@dataclass(frozen=True, slots=True)
class Uri:
    """Where a broker is; ``host`` without brackets.

    ``user`` and ``password`` are decoded and never shown.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def secure(self) -> bool:
        """Whether the scheme asks for TLS."""
        return self.scheme in ("ssl", "amqps", "mqtts", "https", "wss")

    @property
    def authority(self) -> str:
        """Host and port as they stand in a uri: an address of IPv6 has brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A kind of signals that a target publishes, with the texts of its parameters."""

    path: str  # e.g. _/_/things/twin/events
    namespaces: frozenset[str] = frozenset()
    filter: str = ""
    extra_fields: str = ""


@dataclass(frozen=True, slots=True)
class ReplyTarget:
    """Where answers to what a source consumes are published."""

    address: str
    header_mapping: Mapping[str, str] = field(default_factory=_nothing)
    expected: frozenset[str] = frozenset({"response", "error"})


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What a message has to come from to be about a thing: ``input`` has to equal a filter."""

    input: str
    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Addresses that are consumed. ``index`` is its place in the document."""

    index: int
    addresses: tuple[str, ...]
    subjects: tuple[str, ...]  # authorizationContext
    consumers: int = 1
    qos: int | None = None
    enforcement: Enforcement | None = None
    includes: tuple[str, ...] = ()  # acknowledgementRequests
    ack_filter: str | None = None
    header_mapping: Mapping[str, str] = field(default_factory=_nothing)
    mappers: Mappers = ()
    declared: tuple[str, ...] = ()  # declaredAcks, resolved
    reply: ReplyTarget | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """An address that signals are published to. ``index`` is its place in the document."""

    index: int
    address: str
    topics: tuple[Topic, ...]
    subjects: tuple[str, ...]
    qos: int | None = None
    issued: str | None = None  # issuedAcknowledgementLabel, resolved
    header_mapping: Mapping[str, str] = field(default_factory=_nothing)
    mappers: Mappers = ()


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection document, checked and resolved."""

    id: str
    kind: Kind
    open: bool  # whether it is meant to be open
    uri: Uri
    sources: tuple[Source, ...] = ()
    targets: tuple[Target, ...] = ()
    name: str | None = None
    clients: int = 1
    failover: bool = True
    validate_certificates: bool = True
    ca: str | None = None  # PEM of the authorities that are trusted
    credentials: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    specific: Mapping[str, str] = field(default_factory=_nothing)  # specificConfig
    mapping_definitions: Mapping[str, Any] = field(default_factory=_nothing)
    tags: tuple[str, ...] = ()

    @property
    def login(self) -> tuple[str | None, str | None]:
        """User and password: of the uri, or of credentials of type ``user-pass`` or ``plain``."""
        given = self.credentials
        if self.uri.user is None and given.get("type") in ("user-pass", "plain"):
            return str(given.get("username", "")), str(given.get("password", ""))
        return self.uri.user, self.uri.password
