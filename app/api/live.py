"""Things over the live channel: commands that subscribers answer, and smart queries (spec 3).

``things.py`` and ``queries.py`` call in here for requests with the headers :data:`CHANNEL_HEADERS`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from acks.aggregator import Answer, Outcome, http_answer, stand_in
from acks.document import format_pointer, parse_pointer
from acks.errors import GatewayError
from acks.headers import AckOptions, Setter, http_options
from acks.labels import LIVE_RESPONSE
from acks.live import is_smart, not_creatable, parse_channel, parse_timeout_strategy
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
_ERROR_FIELDS = frozenset({"status", "error", "message", "description", "href"})
_ERROR_CODE = re.compile(r"[a-z][a-z0-9_-]*([:.][a-z0-9_-]+)+", re.ASCII | re.IGNORECASE)
"""``things:attribute.notfound``: an error's code has a namespace or a dot, plain words have not."""


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


async def answer_live(gateway: Gateway, live: Live, location: str = "") -> Answer:
    """Send a live command or message and wait; its outcome as an answer. Raises GatewayError.

    ``location`` is the address of what it may create, "" for nothing that has one.
    """
    outcome = await gateway.ask_live(live)
    if live.criterion == "commands" and live.action == "retrieve":
        outcome = await _readable(gateway, live, outcome)
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
    outcome = await _readable(gateway, live, outcome)
    if LIVE_RESPONSE in outcome.late and strategy == "use-twin":
        answer = live_answer(live, stand_in(outcome, LIVE_RESPONSE, twin))
        return _from_channel(answer, "twin", matched=True)
    return _from_channel(live_answer(live, outcome), "live", matched=True)


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
        if ack.label != LIVE_RESPONSE or _is_error(ack):
            return ack
        seen: Any = ABSENT
        if isinstance(ack.payload, dict):
            seen = policy.view(live.subjects, "thing", path, ack.payload, foreign=True)
        if seen is ABSENT and ack.success:
            raise not_found(live.thing_id, path)
        return ack._replace(payload=None if seen is ABSENT else seen)

    return outcome._replace(acks=tuple(cut(ack) for ack in outcome.acks))


def _is_error(ack: Acknowledgement) -> bool:
    """Whether a live response says by status and payload that it is an error, and nothing else."""
    payload = ack.payload
    return (
        ack.status >= 400
        and isinstance(payload, dict)
        and payload.keys() <= _ERROR_FIELDS
        and payload.get("status") == ack.status
        and isinstance(payload.get("error"), str)
        and _ERROR_CODE.fullmatch(payload["error"]) is not None
        and all(isinstance(payload.get(name, ""), str) for name in _ERROR_FIELDS - {"status"})
    )
