"""Reply targets: the answers to what a source consumes (spec websocket-... 4.3)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from acks.envelopes import Envelope, error_envelope
from acks.errors import GatewayError
from acks.protocol import read_headers, read_topic
from connections.driver import Published
from connections.ledger import Ledger
from connections.model import Connection, Source
from connections.placeholders.lookups import Scope, text_headers
from connections.ports import Answer
from connections.publishing import Publisher, in_words
from connections.sending import Route, facts_of

Sort = Literal["response", "error", "nack"]


class Replies:
    """Publishes the answers of one source, as far as they are expected.

    Raises PlaceholderError, GatewayError for texts that cannot be read.
    """

    def __init__(
        self, connection: Connection, source: Source, ledger: Ledger, publisher: Publisher
    ) -> None:
        self._ledger = ledger
        self._publisher = publisher
        self._id = connection.id
        self._reply = source.reply
        if source.reply is not None:
            address, header_mapping = source.reply.address, source.reply.header_mapping
            self._route = Route(connection, address, header_mapping, source.mappers, None)
            self._row = ledger.row("outbound", address)

    def answer(self, answer: Answer, asked: Envelope, scope: Scope) -> None:
        """Publish an answer; ``asked`` is what it answers, ``scope`` that of the message."""
        if answer.envelope is None or self._reply is None:
            return
        sort: Sort = "response"
        if answer.error is not None or is_error(answer.envelope):
            sort = "error"
        elif _is_acks(answer.envelope) and any(status >= 300 for status in answer.statuses):
            sort = "nack"
        if sort in self._reply.expected:
            self._send(answer.envelope, asked, scope)

    def refuse(self, problem: GatewayError, asked: Envelope | None, scope: Scope) -> None:
        """Publish that a message, or what was mapped from it, cannot be taken."""
        if self._reply is None or "error" not in self._reply.expected:
            return
        headers: Mapping[str, Any] = {}
        thing_id = None
        if asked is not None:
            try:
                headers = read_headers(asked)
                topic = read_topic(asked)
            except GatewayError:
                topic = None
            if topic is not None and topic.namespace != "_":
                thing_id = topic.thing_id
        if headers.get("response-required") in (False, "false"):
            return
        correlation_id = headers.get("correlation-id", scope.headers.get("correlation-id"))
        known = correlation_id if isinstance(correlation_id, str) else None
        self._send(error_envelope(problem, known, thing_id), asked or {}, scope)

    def _send(self, envelope: Envelope, asked: Envelope, scope: Scope) -> None:
        """Texts mean the headers of the answer, then of what was asked, then of the message."""
        headers = {**scope.headers, **_texts(asked), **text_headers(envelope)}
        scope = replace(scope, envelope=envelope, headers=headers)
        now = time.time()
        address = self._route.where(scope)
        if address is None:
            self._row.count("dropped", now, ok=False)
            text = "The address of the reply target cannot be resolved."
            self._log(now, "dropped", text, envelope)
            return
        publications, problems = self._route.publications(envelope, scope, address)
        for problem in problems:
            self._row.count("mapped", now, ok=False)
            self._log(now, "mapped", f"{problem.message} {problem.description or ''}", envelope)
        for publication in publications:
            self._row.count("mapped", now)
            self._publisher.send(publication, lambda result: self._published(result, envelope))

    def _published(self, result: Published, envelope: Envelope) -> None:
        now = time.time()
        ok = 200 <= result.status < 300
        self._row.count("published", now, ok)
        if not ok:
            text = f"A response could not be published: {in_words(result)}"
            self._log(now, "published", text, envelope)

    def _log(self, now: float, kind: str, text: str, envelope: Envelope) -> None:
        self._ledger.log(
            now, "response", kind, False, text, address=self._route.address, **facts_of(envelope)
        )


def _texts(asked: Envelope) -> dict[str, str]:
    return text_headers(asked) if isinstance(asked.get("headers"), dict) else {}


def is_error(envelope: Envelope) -> bool:
    """Whether an envelope is an error, by its topic."""
    return str(envelope["topic"]).endswith("/errors")


def _is_acks(envelope: Envelope) -> bool:
    parts = str(envelope["topic"]).split("/")
    return len(parts) > 4 and parts[4] == "acks"
