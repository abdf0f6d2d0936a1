"""Things over the live channel: commands that subscribers answer, and smart queries (spec 3).

``things.py`` and ``queries.py`` call in here for requests with the headers :data:`CHANNEL_HEADERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from acks.aggregator import Answer, Outcome, http_answer
from acks.document import format_pointer
from acks.errors import GatewayError
from acks.headers import AckOptions, Setter, http_options
from acks.labels import LIVE_RESPONSE
from acks.live import is_smart, not_creatable, parse_channel, parse_timeout_strategy, resource_of
from acks.payloads import JSON_TYPE
from acks.policy import READ
from acks.preconditions import Preconditions, parse_preconditions
from acks.resources import ABSENT, not_found
from acks.signals import Acknowledgement, Command, Live, Query
from app.api.http import RequestHead, Rules, error_answer
from app.gateway import Gateway
from app.store.prepare import check_twin_condition

CHANNEL_HEADERS = frozenset({"channel", "live-channel-condition", "live-channel-timeout-strategy"})
_MERGE_TYPE = "application/merge-patch+json"


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


def live_command(head: RequestHead, command: Command, rules: Rules) -> Live:
    """A command that was meant for the live channel, read as one for the twin.

    Raises ``things:thing.notcreatable`` for one that would make a thing (spec 3).
    """
    if command.action == "create":
        raise not_creatable()
    action = "modify" if command.action == "put" else command.action
    live = _live(head, rules, command.thing_id, command.path, action, command.subjects)
    if action == "delete":
        return live._replace(checks=command.checks)
    content_type = _MERGE_TYPE if action == "merge" else JSON_TYPE
    # A patch or value of null is one: without it the envelope would have none.
    value = orjson.Fragment(b"null") if command.value is None else command.value
    return live._replace(
        value=value,
        headers={**live.headers, "content-type": content_type},
        checks=command.checks,
    )


def live_query(head: RequestHead, query: Query, rules: Rules, fields: str) -> Live:
    """A query as a live command; ``fields`` is its field selector as given, or ""."""
    live = _live(head, rules, query.thing_id, query.path, "retrieve", query.subjects)
    return live._replace(checks=query.checks, fields=fields)


def _live(
    head: RequestHead,
    rules: Rules,
    thing_id: str,
    path: tuple[str, ...],
    action: str,
    subjects: tuple[str, ...],
) -> Live:
    known = head.known
    # A query always wants an answer, whatever follows for others from an empty requested-acks.
    wanted = "true" if action == "retrieve" else known.get("response-required")
    options = live_options(known.get("requested-acks"), wanted, known.get("timeout"), rules)
    return Live(
        thing_id,
        "commands",
        action,
        format_pointer(path),
        None,
        head.correlation_id,
        options,
        subjects,
        {**head.carried, **dict(options.given)},
    )


async def query_channels(
    gateway: Gateway,
    head: RequestHead,
    query: Query,
    rules: Rules,
    fields: str,
    twin: Callable[[], Awaitable[Answer]],
) -> Answer:
    """Answer a query by the channel that its headers choose (spec 3); raises GatewayError.

    ``twin`` answers it from the twin; ``fields`` is as for :func:`live_query`.
    """
    known = head.known
    channel = parse_channel(known.get("channel"))
    strategy = parse_timeout_strategy(known.get("live-channel-timeout-strategy"))
    condition = known.get("live-channel-condition")
    if not is_smart(channel, strategy, condition):
        if channel == "twin":
            return await twin()
        return await answer_live(gateway, live_query(head, query, rules, fields))
    wanted = None if condition is None else parse_preconditions({"condition": condition})
    live = live_query(head, query, rules, fields)
    return await smart_query(gateway, live, await twin(), wanted, strategy)


async def answer_live(gateway: Gateway, live: Live) -> Answer:
    """Send a live command or message and wait; its outcome as an answer. Raises GatewayError."""
    outcome = await gateway.ask_live(live)
    if live.criterion == "commands" and live.action == "retrieve":
        outcome = await _readable(gateway, live, outcome)
    return live_answer(live, outcome)


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


async def smart_query(
    gateway: Gateway,
    live: Live,
    twin: Answer,
    condition: Preconditions | None,
    strategy: str,
) -> Answer:
    """The answer to a query that may be put to the live channel too (spec 3).

    ``live`` is the query as a live command, ``twin`` the twin's answer, ``condition`` holds the
    ``live-channel-condition``, ``strategy`` is fail or use-twin. Raises GatewayError.
    """
    if condition is not None and not await _matches(gateway, live, condition):
        return _from_channel(twin, "twin", matched=False)
    outcome = await gateway.ask_live(live)
    problem = outcome.error
    if problem is not None and problem.code == "command.timeout" and strategy == "use-twin":
        return _from_channel(twin, "twin", matched=True)
    answer = live_answer(live, await _readable(gateway, live, outcome))
    return _from_channel(answer, "live", matched=True)


def _from_channel(answer: Answer, channel: str, *, matched: bool) -> Answer:
    headers: Mapping[str, Any] = {
        **answer.headers,
        "channel": channel,
        "live-channel-condition-matched": "true" if matched else "false",
    }
    return answer._replace(headers=headers)


async def _matches(gateway: Gateway, live: Live, condition: Preconditions) -> bool:
    twin, text, policy = await gateway.twins.get(live.thing_id)
    twin = twin._replace(document=orjson.loads(text))
    try:
        check_twin_condition(twin, policy, condition, live.subjects)
    except GatewayError:
        return False
    return True


async def _readable(gateway: Gateway, live: Live, outcome: Outcome) -> Outcome:
    """A retrieve's outcome, its live response cut to what the requester may read."""
    answered = [ack for ack in outcome.acks if ack.label == LIVE_RESPONSE and ack.success]
    if not answered:
        return outcome
    _, _, policy = await gateway.twins.get(live.thing_id)
    path = resource_of(live)[1]
    if policy.may(live.subjects, READ, "thing", path):
        return outcome

    def cut(ack: Acknowledgement) -> Acknowledgement:
        if ack not in answered or ack.payload is None:
            return ack
        seen = policy.view(live.subjects, "thing", path, ack.payload)
        if seen is ABSENT:
            raise not_found(live.thing_id, path)
        return ack._replace(payload=seen)

    return outcome._replace(acks=tuple(cut(ack) for ack in outcome.acks))
