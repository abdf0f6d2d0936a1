"""Aggregator: the acks of one signal -> Outcome (spec acks-and-http 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from acks.errors import GatewayError, error
from acks.labels import LIVE_RESPONSE, TWIN_PERSISTED
from acks.payloads import JSON_TYPE, body_of, is_protocol_type, read_content_type
from acks.signals import Acknowledgement, Response

_REFUSED = (
    "Received no appropriate live response within the specified timeout. An invalid response was "
    "received, though: "
)
_PLAIN = ((TWIN_PERSISTED,), (LIVE_RESPONSE,))
OURS = frozenset({
    "location", "www-authenticate", "retry-after", "allow", "preference-applied", "etag",
    "entity-revision", "ditto-originator", "requested-acks", "link",
})  # fmt: skip
"""Headers of an HTTP answer that say something of ours: no subscriber chooses them (1.8, 4.2)."""


def combined_status(statuses: Sequence[int]) -> int:
    """Status of several acks (spec 4.1): one -> its own; all 2xx -> 200; else 424; none -> 500."""
    if not statuses:
        return 500
    if len(statuses) == 1:
        return statuses[0]
    return 200 if all(200 <= status < 300 for status in statuses) else 424


def entry_json(ack: Acknowledgement, minimal: bool = False) -> dict[str, Any]:
    """One ack inside an aggregated answer: status, payload?, headers, in this order (spec 4.2)."""
    entry: dict[str, Any] = {"status": ack.status}
    if minimal:
        entry["headers"] = {"response-required": False}
        return entry
    if ack.payload is not None:
        entry["payload"] = ack.payload
    headers = {k: v for k, v in ack.headers.items() if k != "requested-acks"}
    if is_protocol_type(headers.get("content-type")):
        del headers["content-type"]  # it says how the ack came, not what its payload is
    headers["response-required"] = False
    entry["headers"] = headers
    return entry


def aggregate_json(acks: Iterable[Acknowledgement], minimal: bool = False) -> dict[str, Any]:
    """Label -> entry; a label that occurs twice becomes an array (spec 4.2)."""
    body: dict[str, Any] = {}
    for ack in acks:
        entry = entry_json(ack, minimal)
        known = body.get(ack.label)
        if known is None:
            body[ack.label] = entry
        elif isinstance(known, list):
            known.append(entry)
        else:
            body[ack.label] = [known, entry]
    return body


class Outcome(NamedTuple):
    """The one answer type: final acks and combined status, or a plain response, or an error.

    ``late`` are the labels among ``acks`` that nobody has acknowledged in time.
    """

    status: int
    acks: tuple[Acknowledgement, ...] = ()
    response: Response | None = None
    error: GatewayError | None = None
    late: tuple[str, ...] = ()

    @property
    def success(self) -> bool:
        """Whether everything that was asked for has happened."""
        return 200 <= self.status < 300


class Answer(NamedTuple):
    """An outcome rendered for HTTP: ``body`` is a JSON value or bytes, None means no body."""

    status: int
    body: Any
    headers: Mapping[str, Any]
    content_type: str = JSON_TYPE


_NO_HEADERS: dict[str, Any] = {}


def http_answer(
    outcome: Outcome, response_required: bool, command_headers: Mapping[str, Any]
) -> Answer:
    """Render an outcome for HTTP, by the table of spec 4.2.

    ``command_headers`` are the answer headers that only depend on the command.
    """
    if outcome.error is not None:
        return Answer(outcome.status, outcome.error.to_json(), command_headers)
    acks = outcome.acks
    if not response_required:
        if outcome.success:
            return Answer(202, None, _NO_HEADERS)
        if len(acks) < 2 and outcome.status >= 200:
            return Answer(outcome.status, None, command_headers)
        return Answer(424, aggregate_json(acks, minimal=True), command_headers)
    if outcome.response is not None:
        response = outcome.response
        return Answer(response.status, response.payload, {**response.headers, **command_headers})
    if len(acks) == 1 and acks[0].status >= 200:
        given = {name: value for name, value in acks[0].headers.items() if name not in OURS}
        return _single(acks[0], {**given, **command_headers})
    # A lone ack's 1xx cannot be the status of an answer.
    status = outcome.status if outcome.status >= 200 else 424
    return Answer(status, aggregate_json(acks), command_headers)


def _single(ack: Acknowledgement, headers: Mapping[str, Any]) -> Answer:
    """The one ack of a request as its answer: the bare payload, in the form it came in."""
    status = ack.status
    if ack.label == LIVE_RESPONSE and status == 502:
        status = 200  # 502 would be taken for a failure of ours (spec 9.3)
    if ack.payload is None or status in (204, 304):
        return Answer(status, None, headers)
    given = ack.headers.get("content-type")
    if given is None:
        return Answer(status, ack.payload, headers)
    content_type = read_content_type(str(given))
    return Answer(status, body_of(ack.payload, content_type), headers, content_type.shown)


def stand_in(outcome: Outcome, label: str, response: Response) -> Outcome:
    """The outcome with ``response`` as the ack of ``label``, which nobody gave in time (4, 4)."""
    acks = tuple(
        ack._replace(status=response.status, payload=response.payload, headers=response.headers)
        if ack.label == label
        else ack
        for ack in outcome.acks
    )
    status = combined_status([ack.status for ack in acks])
    return Outcome(status, acks, late=tuple(one for one in outcome.late if one != label))


class Aggregator:
    """Collects the acks of one signal. Every method returns the outcome once it is final.

    ``labels`` are the ack requests after defaulting; with none of them the processing's own
    response is the answer. A command that wants neither acks nor a response is accepted (202)
    unless an error comes in time.
    """

    __slots__ = (
        "_acks", "_missing", "_refused", "correlation_id", "labels", "outcome", "response_required",
        "thing_id", "timeout_ms", "token",
    )  # fmt: skip
    token: int  # set by Pending.mark alone: to set it for all would be paid for by all

    def __init__(
        self,
        thing_id: str,
        correlation_id: str,
        labels: tuple[str, ...],
        timeout_ms: int,
        response_required: bool = True,
    ) -> None:
        self.thing_id = thing_id
        self.correlation_id = correlation_id
        self.labels = labels
        self.timeout_ms = timeout_ms
        self.response_required = response_required
        self.outcome: Outcome | None = None
        self._acks: dict[str, Acknowledgement | None] = dict.fromkeys(labels)
        self._missing = len(self._acks)
        self._refused: str | None = None

    def respond(self, response: Response) -> Outcome | None:
        """Take the success of our own processing: it is the answer, or counts as its label."""
        if self.outcome is not None:
            return None
        if not self.labels or self.labels == _PLAIN[0]:
            self.outcome = Outcome(response.status, response=response)
            return self.outcome
        if TWIN_PERSISTED not in self._acks:
            return None
        ack = Acknowledgement(
            TWIN_PERSISTED,
            self.thing_id,
            self.correlation_id,
            response.status,
            response.payload,
            response.headers,
        )
        return self.receive(ack)

    def fail(self, problem: GatewayError) -> Outcome | None:
        """Take an error of our own processing: it ends the wait and is the answer (spec 4, 5)."""
        if self.outcome is not None:
            return None
        self.outcome = Outcome(problem.status, error=problem)
        return self.outcome

    def receive(self, ack: Acknowledgement) -> Outcome | None:
        """Take an ack; it counts only if its label is outstanding, so the first one wins (4, 2)."""
        if not self.is_outstanding(ack.label):
            return None
        self._acks[ack.label] = ack
        self._missing -= 1
        return None if self._missing else self._finish()

    def expire(self) -> Outcome | None:
        """The time is up: what is outstanding becomes 408 (spec 4, 1 and 6)."""
        if self.outcome is not None:
            return None
        if not self.labels and not self.response_required:
            self.outcome = Outcome(202, response=Response(202, None, {}))
            return self.outcome
        if not self.labels or self.labels in _PLAIN:
            problem = error(
                "command.timeout",
                timeout_ms=self.timeout_ms,
                description=None if self._refused is None else _REFUSED + self._refused,
            )
            self.outcome = Outcome(problem.status, error=problem)
            return self.outcome
        payload = error("acknowledgement:request.timeout", timeout_ms=self.timeout_ms).to_json()
        headers = {"correlation-id": self.correlation_id, "response-required": False}
        late = self.missing
        for label, ack in self._acks.items():
            if ack is None:
                self._acks[label] = Acknowledgement(
                    label, self.thing_id, self.correlation_id, 408, payload, headers
                )
        self.outcome = self._finish()._replace(late=late)
        return self.outcome

    def refuse(self, reason: str) -> None:
        """Take note of a live response that does not count; a timeout will say so (spec 3)."""
        self._refused = reason

    def is_outstanding(self, label: str) -> bool:
        """Whether an ack with this label would still count."""
        return self.outcome is None and self._acks.get(label, _ABSENT) is None

    @property
    def missing(self) -> tuple[str, ...]:
        """Labels that nobody has acknowledged yet."""
        return tuple(label for label, ack in self._acks.items() if ack is None)

    def _finish(self) -> Outcome:
        acks = tuple(filter(None, self._acks.values()))
        self.outcome = Outcome(combined_status([ack.status for ack in acks]), acks)
        return self.outcome


_ABSENT: Any = object()
