"""What a source makes of a message: Ditto Protocol messages, and in whose name they are sent.

Mapping, header mapping, enforcement, ack requests, in this order (spec websocket-... 4.1, 4.2).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from acks.envelopes import Envelope
from acks.errors import GatewayError, error
from connections.driver import Delivery
from connections.expiry import expired
from connections.ledger import Ledger, Row
from connections.mapping.ack_requests import parse_ack_filter, request_acks
from connections.mapping.enforcement import enforce, parse_enforcement
from connections.mapping.headers import map_headers, parse_header_mapping
from connections.mapping.mappers import Message
from connections.mapping.payloads import map_incoming, mappers_of
from connections.model import Connection, Source
from connections.placeholders.lookups import PREFIXES, Scope
from connections.placeholders.templates import parse_template
from connections.ports import Sender


class Problem(NamedTuple):
    """Why nothing can be done with a message, or with what was mapped from it (``envelope``).

    ``counts``: the message is settled by it. Errors of mapping and enforcement do not count: such
    a message is done (spec 4.4, rules 1 and 5).
    """

    error: GatewayError
    envelope: Envelope | None = None
    counts: bool = False


class Taken(NamedTuple):
    """What a message asks for."""

    commands: list[tuple[Envelope, Sender]]
    problems: list[Problem]


class Intake:
    """A source whose texts have been read.

    Raises PlaceholderError, GatewayError for texts that cannot be read.
    """

    def __init__(self, connection: Connection, source: Source, ledger: Ledger) -> None:
        self.source = source
        self._id = connection.id
        self._expires = connection.kind == "kafka"
        self._mappers = mappers_of(source.mappers, connection.mapping_definitions)
        self._header_mapping = parse_header_mapping(source.header_mapping)
        self._guard = parse_enforcement(source.enforcement)
        self._ack_filter = parse_ack_filter(source.ack_filter)
        self._asks = bool(source.includes) or self._ack_filter is not None
        self._declared = frozenset(source.declared)
        self._subjects = [parse_template(subject, PREFIXES) for subject in source.subjects]
        self._sender: Sender | None = None  # the same for all messages
        if not any("{{" in subject for subject in source.subjects):
            self._sender = Sender(connection.id, source.subjects, self._declared)
        # Nothing is to be done with its messages but to hand them on.
        changes = self._header_mapping or self._guard or self._asks
        self._plain = None if changes else self._sender
        self._rows = {address: ledger.row("inbound", address) for address in source.addresses}

    def row(self, address: str) -> Row:
        """The counts of one of its addresses."""
        found = self._rows.get(address)
        return found if found is not None else next(iter(self._rows.values()))

    def scope(self, delivery: Delivery, now: float) -> Scope:
        """What texts can name of a message; ``now`` in seconds since the epoch."""
        moment = datetime.fromtimestamp(now, UTC)
        subject = self.source.subjects[0] if self.source.subjects else None
        return Scope(self._id, moment, delivery.headers, None, subject, delivery.address)

    def take(self, delivery: Delivery, scope: Scope, row: Row, now: float) -> Taken:
        """Read a message. What is wrong with it is among the problems."""
        if self._expires and expired(delivery.headers, now):
            row.count("dropped", now)
            return Taken([], [])
        message = Message(delivery.payload, delivery.content_type, delivery.headers)
        mapped = map_incoming(self._mappers, message, scope)
        taken = Taken([], [Problem(problem) for problem in mapped.problems])
        for envelope in mapped.envelopes:
            row.count("mapped", now)
            try:
                taken.commands.append(self._command(envelope, scope, row, now))
            except GatewayError as problem:
                counts = problem.code == "header.invalid"
                taken.problems.append(Problem(problem, envelope, counts))
        for _ in mapped.problems:
            row.count("mapped", now, ok=False)
        if not taken.commands and not taken.problems:
            row.count("dropped", now)
        return taken

    def _command(
        self, envelope: Envelope, outer: Scope, row: Row, now: float
    ) -> tuple[Envelope, Sender]:
        """Complete a mapped message. Raises GatewayError if it may not go on."""
        if self._plain is not None:
            return envelope, self._plain
        scope = outer.of(envelope)
        if self._header_mapping:
            mapped = map_headers(self._header_mapping, scope)
            given = envelope.get("headers")
            if mapped and (given is None or isinstance(given, dict)):
                envelope = {**envelope, "headers": _over(given or {}, mapped)}
                scope = outer.of(envelope)
        if self._guard is not None:
            try:
                enforce(self._guard, scope)
            except GatewayError:
                row.count("enforced", now, ok=False)
                raise
            row.count("enforced", now)
        if self._asks:
            envelope = request_acks(envelope, self.source.includes, self._ack_filter, scope)
        return envelope, self._sender or self._sender_of(scope)

    def _sender_of(self, scope: Scope) -> Sender:
        subjects: list[str] = []
        for text, template in zip(self.source.subjects, self._subjects, strict=True):
            found = template.resolve(scope)
            if not found:
                reason = "It is in the authorization context of the source."
                raise error("placeholder:unresolved", placeholder=text, reason=reason)
            subjects.extend(found)
        return Sender(self._id, tuple(dict.fromkeys(subjects)), self._declared)


def _over(given: dict[str, object], mapped: dict[str, str]) -> dict[str, object]:
    """Headers with the mapped ones in place of those of the same name, whatever its case."""
    kept = {name: value for name, value in given.items() if name.lower() not in mapped}
    return {**kept, **mapped}
