"""Things over the live channel: commands that subscribers answer, and smart queries (spec 3).

``things.py`` and ``queries.py`` call in here for requests with the headers :data:`CHANNEL_HEADERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from acks.aggregator import Answer, Outcome, http_answer, stand_in
from acks.document import format_pointer, parse_pointer
from acks.errors import GatewayError
from acks.headers import AckOptions, Setter, http_options
from acks.labels import LIVE_RESPONSE
from acks.live import (
    is_error,
    is_smart,
    not_creatable,
    parse_channel,
    parse_timeout_strategy,
)
from acks.payloads import JSON_TYPE
from acks.policy import READ
from acks.preconditions import Preconditions, parse_preconditions
from acks.resources import ABSENT, not_found
from acks.signals import Acknowledgement, Command, Live, Query, Response
from app.api.http import RequestHead, Rules, error_answer
from app.gateway import Gateway
from app.store.prepare import check_twin_condition

CHANNEL_HEADERS = frozenset({"channel", "live-channel-condition", "live-channel-timeout-strategy"})
_MERGE_TYPE = "application/merge-patch+json"
NULL = orjson.Fragment(b"null")
"""A payload of null, where None is none."""


@lru_cache(maxsize=1024)
def live_options(
    requested_acks: str | None, response_required: str | None, timeout: str | None, rules: Rules
) -> AckOptions:
    """The ack headers of a live command, read and completed; raises as :func:`http_options`."""
    options = http_options(Setter.LIVE, requested_acks, response_required, timeout, *rules)
    return replace(options, given=(*options.given, ("channel", "live")))


def is_live(head: RequestHead) -> bool:
    """Whether a changing request goes to the live channel; raises ``header.invalid``."""
    return "channel" in head.known and parse_channel(head.known["channel"]) == "live"


def live_command(command: Command) -> Live:
    """A command that was meant for the live channel, read as one for the twin.

    Its options are those of :func:`live_options`.
    Raises ``things:thing.notcreatable`` for one that would make a thing (spec 3).
    """
    if command.action == "create":
        raise not_creatable()
    action = "modify" if command.action == "put" else command.action
    headers = {**command.headers, **dict(command.options.given)}
    value: Any = None
    if action != "delete":
        headers["content-type"] = _MERGE_TYPE if action == "merge" else JSON_TYPE
        # A patch or value of null is one: without it the envelope would have none.
        value = NULL if command.value is None else command.value
    return Live(
        command.thing_id,
        "commands",
        action,
        format_pointer(command.path),
        value,
        command.correlation_id,
        command.options,
        command.subjects,
        headers,
        command.origin,
        command.checks,
    )


def live_query(query: Query, options: AckOptions, carried: Mapping[str, str], fields: str) -> Live:
    """A query as a live command.

    ``options`` are those of :func:`live_options`, ``carried`` the headers that travel along,
    ``fields`` is its field selector as given, or "".
    """
    return Live(
        query.thing_id,
        "commands",
        "retrieve",
        format_pointer(query.path),
        None,
        query.correlation_id,
        options,
        query.subjects,
        {**carried, **dict(options.given)},
        checks=query.checks,
        fields=fields,
    )


async def query_channels(
    gateway: Gateway,
    head: RequestHead,
    query: Query,
    rules: Rules,
    fields: str,
    twin: Callable[[], Awaitable[Response]],
) -> Answer:
    """Answer a query by the channel that its headers choose (spec 3); raises GatewayError.

    ``twin`` answers it from the twin; ``fields`` is as for :func:`live_query`.
    """
    choice = Choice.read(head.known, parse_channel(head.known.get("channel")))
    if choice.channel == "twin" and not choice.smart:
        response = await twin()
        return Answer(response.status, response.payload, response.headers)
    # A query always wants an answer, whatever follows for others from an empty requested-acks.
    known = head.known
    options = live_options(known.get("requested-acks"), "true", known.get("timeout"), rules)
    live = live_query(query, options, head.carried, fields)
    if not choice.smart:
        return await answer_live(gateway, live)
    chosen = await smart_query(gateway, live, await twin(), choice)
    answer = live_answer(live, chosen.outcome)
    return answer._replace(headers={**answer.headers, **chosen.headers})


class Choice(NamedTuple):
    """The channel that a query's headers choose (spec 2.3, 3).

    A ``smart`` one asks the twin first, and then maybe the live channel; ``condition`` holds the
    ``live-channel-condition``, ``use_twin`` is what it does without a live answer.
    """

    channel: str
    smart: bool
    condition: Preconditions | None
    use_twin: bool

    @classmethod
    def read(cls, known: Mapping[str, str], channel: str) -> Choice:
        """Read it from the headers of a query for ``channel``.

        Raises ``header.invalid``, ``rql.expression.invalid``.
        """
        strategy = parse_timeout_strategy(known.get("live-channel-timeout-strategy"))
        condition = known.get("live-channel-condition")
        smart = is_smart(channel, strategy, condition)
        wanted = None
        if smart and condition is not None:
            wanted = parse_preconditions({"condition": condition})
        return cls(channel, smart, wanted, strategy == "use-twin")


async def answer_live(gateway: Gateway, live: Live, location: str = "") -> Answer:
    """Send a live command or message and wait; its outcome as an answer. Raises GatewayError.

    ``location`` is the address of what it may create, "" for nothing that has one.
    """
    outcome = await gateway.ask_live(live)
    if live.criterion == "commands" and live.action == "retrieve":
        outcome = await readable(gateway, live, outcome)
    answer = live_answer(live, outcome)
    if answer.status == 201 and location:
        return answer._replace(headers={**answer.headers, "location": location})
    return answer


def live_answer(live: Live, outcome: Outcome) -> Answer:
    """The outcome of a live signal as an answer (spec 4.2, 9.3)."""
    options = live.options
    if outcome.error is not None:
        answer = error_answer(outcome.error, live.correlation_id)
        return answer._replace(headers={**answer.headers, **dict(options.given)})
    headers = {
        "correlation-id": live.correlation_id,
        "response-required": "false",
        **dict(options.given),
    }
    return http_answer(outcome, options.response_required, headers)


class Chosen(NamedTuple):
    """What a smart query gave: its outcome, from which channel, and whether the condition held."""

    outcome: Outcome
    channel: str
    matched: bool

    @property
    def headers(self) -> dict[str, str]:
        """What an answer says of the choice."""
        matched = "true" if self.matched else "false"
        return {"channel": self.channel, "live-channel-condition-matched": matched}


async def smart_query(gateway: Gateway, live: Live, twin: Response, choice: Choice) -> Chosen:
    """Carry out a query that may be put to the live channel too (spec 3).

    ``live`` is the query as a live command, ``twin`` the twin's response. Raises GatewayError.
    """
    from_twin = Outcome(twin.status, response=twin)
    if choice.condition is not None and not await _matches(gateway, live, choice.condition):
        return Chosen(from_twin, "twin", matched=False)
    outcome = await gateway.ask_live(live)
    problem = outcome.error
    if problem is not None and problem.code == "command.timeout" and choice.use_twin:
        return Chosen(from_twin, "twin", matched=True)
    outcome = await readable(gateway, live, outcome)
    if LIVE_RESPONSE in outcome.late and choice.use_twin:
        return Chosen(stand_in(outcome, LIVE_RESPONSE, twin), "twin", matched=True)
    return Chosen(outcome, "live", matched=True)


async def _matches(gateway: Gateway, live: Live, condition: Preconditions) -> bool:
    twin, text, policy = await gateway.twins.get(live.thing_id)
    twin = twin._replace(document=orjson.loads(text))
    try:
        check_twin_condition(twin, policy, condition, live.subjects)
    except GatewayError:
        return False
    return True


async def readable(gateway: Gateway, live: Live, outcome: Outcome) -> Outcome:
    """A retrieve's outcome, its live response cut to what the requester may read (ws 5.4).

    Whatever its status: it says nothing about what is in the payload. What cannot be cut is
    withheld. Raises the 404 of the resource if that leaves nothing of a success.
    """
    answered = [ack for ack in outcome.acks if ack.label == LIVE_RESPONSE]
    if not answered or answered[0].payload is None or LIVE_RESPONSE in outcome.late:
        return outcome
    _, _, policy = await gateway.twins.get(live.thing_id)
    path = parse_pointer(live.path)
    if policy.may(live.subjects, READ, "thing", path):
        return outcome

    def cut(ack: Acknowledgement) -> Acknowledgement:
        if ack.label != LIVE_RESPONSE or is_error(ack):
            return ack
        seen: Any = ABSENT
        if isinstance(ack.payload, dict):
            seen = policy.view(live.subjects, "thing", path, ack.payload, foreign=True)
        if seen is ABSENT and ack.success:
            raise not_found(live.thing_id, path)
        return ack._replace(payload=None if seen is ABSENT else seen)

    return outcome._replace(acks=tuple(cut(ack) for ack in outcome.acks))
