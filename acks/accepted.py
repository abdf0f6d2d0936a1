"""Accepted: a request whose sender does not wait for its answer (RFC 7240, ``respond-async``).

Everything that is known of it is a record in the store, which any node may read. What has become
of it is computed from that record and the time alone, so no node has to be alive for it: a request
whose deadline has passed is over, whether or not somebody looked. ``accepted.lua`` says what may be
added to a record; the time of both is the store's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from acks.aggregator import Aggregator, Outcome, aggregate_json
from acks.error_kind import ErrorKind
from acks.errors import CATALOGUE, GatewayError, error
from acks.labels import TWIN_PERSISTED
from acks.live import INVALID_RESPONSE, awaited
from acks.signals import Acknowledgement, Command, JsonObject, Live, Response

LABELS, REPORT = "labels", "report"
"""They stand where a correlation-id stands in the address of a request, and are none of them."""


class Came(NamedTuple):
    """Something that was added to a record, the ``number``-th thing that was."""

    number: int
    thing: Acknowledgement | Response | GatewayError


class Event(NamedTuple):
    """One step of an accepted request: ``kind`` is ack or outcome, ``number`` grows with each.

    ``request``, looked at ``at_ms``, is as it was just after this step.
    """

    number: int
    kind: str
    request: Accepted
    at_ms: int


class Accepted(NamedTuple):
    """The record of one accepted request. Times are ms since the epoch, by the store's clock.

    ``labels`` are the ack requests after defaulting; ``given`` the request's headers that answers
    repeat; ``location`` the address of what it may have created; ``done_ms`` when the last thing
    that was owed came. ``came`` is in the order in which things came, ``refused`` says why a live
    response did not count.
    """

    correlation_id: str
    thing_id: str
    requester: str
    labels: tuple[str, ...]
    live: bool
    response_required: bool
    timeout_ms: int
    keep_ms: int
    given: tuple[tuple[str, str], ...] = ()
    location: str = ""
    accepted_ms: int = 0
    deadline_ms: int = 0
    done_ms: int | None = None
    came: tuple[Came, ...] = ()
    refused: str | None = None

    @property
    def own(self) -> bool:
        """Whether the success of our own processing is owed, as a label or as the only answer."""
        return not self.labels or (not self.live and TWIN_PERSISTED in self.labels)

    @property
    def others(self) -> tuple[str, ...]:
        """The labels that are owed by others than our own processing."""
        return tuple(label for label in self.labels if self.live or label != TWIN_PERSISTED)

    def outcome(self, now_ms: int) -> Outcome | None:
        """What has become of it at ``now_ms``; None while something is owed and may still come."""
        return self._play(now_ms).outcome

    def expires_ms(self) -> int:
        """When the record goes: kept for its time once it is done, or its deadline has passed."""
        return (self.deadline_ms if self.done_ms is None else self.done_ms) + self.keep_ms

    def readable_by(self, subjects: tuple[str, ...]) -> bool:
        """Whether somebody with these subjects may know of it: only its requester may."""
        return self.requester in subjects

    def events(self, now_ms: int, after: int = 0) -> list[Event]:
        """Its steps with a number greater than ``after``, each with the state it led to.

        The last one is the outcome, once there is one.
        """
        steps: list[Event] = []
        number = acks = 0
        for at, came in enumerate(self.came, 1):
            number = came.number
            request = self._replace(came=self.came[:at], done_ms=None)
            if request.outcome(self.deadline_ms) is not None:
                break
            before, acks = acks, len(request.acks())
            if acks > before:
                steps.append(Event(number, "ack", request, self.deadline_ms))
        else:
            number += 1  # its end, if it has one, was not caused by anything that came
        if self.outcome(now_ms) is not None:
            steps.append(Event(number, "outcome", self, now_ms))
        return [step for step in steps if step.number > after]

    def to_json(self, now_ms: int) -> JsonObject:
        """The facts as the status resource shows them; its outcome is for the wire to add."""
        aggregator = self._play(now_ms)
        done = aggregator.outcome is not None
        body: JsonObject = {
            "correlationId": self.correlation_id,
            "thingId": self.thing_id,
            "state": "done" if done else "pending",
            "requestedAcks": list(self.labels),
            "acks": aggregate_json(self.acks()),
            "owed": [] if done else list(aggregator.missing),
            "acceptedAt": instant(self.accepted_ms),
            "deadline": instant(self.deadline_ms),
        }
        if done:
            body["expiresAt"] = instant(self.expires_ms())
        return body

    def acks(self) -> list[Acknowledgement]:
        """The acks that have come, our own response among them if it counts as one."""
        acks: list[Acknowledgement] = []
        for _, thing in self.came:
            if isinstance(thing, Acknowledgement):
                acks.append(thing)
            elif isinstance(thing, Response) and self.labels and self.own:
                acks.append(
                    Acknowledgement(
                        TWIN_PERSISTED,
                        self.thing_id,
                        self.correlation_id,
                        thing.status,
                        thing.payload,
                        thing.headers,
                    )
                )
        return acks

    def _play(self, now_ms: int) -> Aggregator:
        """An aggregator to which everything has happened that has happened to the request."""
        aggregator = Aggregator(
            self.thing_id, self.correlation_id, self.labels, self.timeout_ms, self.response_required
        )
        if self.refused is not None:
            aggregator.refuse(self.refused)
        for _, thing in self.came:
            if isinstance(thing, Acknowledgement):
                aggregator.receive(thing)
            elif isinstance(thing, Response):
                aggregator.respond(thing)
            else:
                aggregator.fail(thing)
        if now_ms > self.deadline_ms:
            aggregator.expire()
        return aggregator


def accept(
    signal: Command | Live, *, timeout_ms: int, keep_ms: int, location: str = ""
) -> Accepted:
    """The record to make for a request; the store adds its times.

    Raises ``header.invalid`` for a correlation-id that would be the address of something
    else.
    """
    if signal.correlation_id in (LABELS, REPORT):
        raise error(
            "header.invalid",
            value=signal.correlation_id,
            header="correlation-id",
            type="correlation-id of a request that is not waited for",
            description="Choose another one: another resource has this address.",
            extras={"invalidHeaderKey": "correlation-id"},
        )
    options = signal.options
    live = isinstance(signal, Live)
    return Accepted(
        signal.correlation_id,
        signal.thing_id,
        signal.subjects[0],
        awaited(options) if live else options.requested_acks,
        live,
        options.response_required,
        timeout_ms,
        keep_ms,
        options.given,
        location,
    )


def request_json(request: Accepted) -> JsonObject:
    """Field ``request`` of the record: the facts that never change."""
    return {
        "id": request.thing_id,
        "s": request.requester,
        "q": request.labels,
        "l": request.live,
        "r": request.response_required,
        "t": request.timeout_ms,
        "g": request.given,
        "u": request.location,
    }


def read_request(correlation_id: str, facts: Mapping[str, Any], keep_ms: int) -> Accepted:
    """Read field ``request`` back; the times and what came are still to be filled in.

    Raises KeyError, TypeError or ValueError if it is not one of ours.
    """
    return Accepted(
        correlation_id,
        facts["id"],
        facts["s"],
        tuple(facts["q"]),
        facts["l"],
        facts["r"],
        facts["t"],
        keep_ms,
        tuple((name, value) for name, value in facts["g"]),
        facts["u"],
    )


def value_json(thing: Acknowledgement | Response | GatewayError) -> Any:
    """What is stored of something that came, as JSON.

    ``[status, headers, payload?]`` of an ack or our response, error JSON, the text of a refusal.
    """
    if isinstance(thing, GatewayError):
        return thing.to_json()
    if isinstance(thing, Acknowledgement) and thing.label == INVALID_RESPONSE:
        return thing.payload
    stored = [thing.status, dict(thing.headers)]
    return stored if thing.payload is None else [*stored, thing.payload]


def read_value(
    request: Accepted, field: str, stored: Any
) -> Acknowledgement | Response | GatewayError:
    """Read the value of field ``field`` (``ack:<label>``, ``response``, ``error``) back.

    Raises KeyError, TypeError, ValueError or IndexError if it is not one of ours.
    """
    if field == "error":
        return _problem(stored)
    status, headers = stored[:2]
    payload = stored[2] if len(stored) > 2 else None
    if field == "response":
        if status == 201 and request.location:
            headers = {**headers, "location": request.location}
        return Response(status, payload, headers)
    label = field.removeprefix("ack:")
    return Acknowledgement(
        label, request.thing_id, request.correlation_id, status, payload, headers or {}
    )


def field_of(thing: Acknowledgement | Response | GatewayError) -> str:
    """The field of a record in which something lies that came."""
    if isinstance(thing, Acknowledgement):
        return "refused" if thing.label == INVALID_RESPONSE else f"ack:{thing.label}"
    return "response" if isinstance(thing, Response) else "error"


def _problem(stored: Mapping[str, Any]) -> GatewayError:
    """An error of the catalogue from its JSON, also one that only a newer node knows."""
    known = CATALOGUE.get(stored["error"])
    kind = ErrorKind(
        stored["error"],
        stored["status"],
        stored["message"],
        href=stored.get("href") if known is None else known.href,
    )
    told = ("status", "error", "message", "description", "href")
    extras = {name: value for name, value in stored.items() if name not in told}
    return GatewayError(kind, stored["message"], stored.get("description"), extras)


def instant(time_ms: int) -> str:
    """A time in ms since the epoch as an ISO-8601 instant with milliseconds."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
