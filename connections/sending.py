"""Ditto Protocol messages on their way to a broker: mapped, addressed, sent.

Used by targets and by reply targets alike (spec websocket-... 4.1, 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypedDict

from acks.envelopes import Envelope
from acks.errors import GatewayError
from connections.driver import Publication
from connections.issued import thing_of
from connections.ledger import NOT_PROVIDED
from connections.mapping.headers import map_headers, parse_header_mapping
from connections.mapping.payloads import map_outgoing, mappers_of
from connections.model import Connection, Mappers
from connections.placeholders.lookups import PREFIXES, Scope, text_headers
from connections.placeholders.templates import parse_template


class Facts(TypedDict):
    """What the log of a connection names a signal by."""

    correlation_id: str
    entity: str


def facts_of(envelope: Envelope) -> Facts:
    """For :meth:`connections.ledger.Ledger.log`."""
    given = str(envelope["headers"].get("correlation-id", NOT_PROVIDED))
    return Facts(correlation_id=given, entity=thing_of(envelope))


class LazyHeaders(Mapping[str, str]):
    """The text headers of an envelope, read when the first of them is asked for."""

    __slots__ = ("_envelope", "_texts")

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._texts: dict[str, str] | None = None

    def _read(self) -> dict[str, str]:
        if self._texts is None:
            self._texts = text_headers(self._envelope)
        return self._texts

    def __getitem__(self, name: str) -> str:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


class Route:
    """A way out: an address with its header and payload mapping, their texts read.

    Raises PlaceholderError, GatewayError for texts that cannot be read.
    """

    def __init__(
        self,
        connection: Connection,
        address: str,
        header_mapping: Mapping[str, str],
        mappers: Mappers,
        qos: int | None,
    ) -> None:
        self.address = address
        self._fixed = None if "{{" in address else address
        self._template = parse_template(address, PREFIXES)
        self._header_mapping = parse_header_mapping(header_mapping)
        self._mappers = mappers_of(mappers, connection.mapping_definitions)
        self._qos = qos

    def where(self, scope: Scope) -> str | None:
        """The address for one message, None if it cannot be resolved."""
        if self._fixed is not None:
            return self._fixed
        found = self._template.resolve(scope)
        return found[0] if found and found[0] else None

    def publications(
        self, envelope: Envelope, scope: Scope, address: str
    ) -> tuple[list[Publication], tuple[GatewayError, ...]]:
        """What is to be sent for a message, and why some mappers failed. ``scope`` has it."""
        mapped = map_outgoing(self._mappers, envelope, scope)
        headers = map_headers(self._header_mapping, scope) if self._header_mapping else {}
        content_type = headers.pop("content-type", None)
        key = thing_of(envelope)
        made = [
            Publication(
                address,
                message.payload,
                content_type or message.content_type,
                {**message.headers, **headers} if headers else message.headers,
                self._qos,
                key,
            )
            for message in mapped.messages
        ]
        return made, mapped.problems
