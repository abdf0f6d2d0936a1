"""Messages over HTTP: to and from things and features, and claims (spec 2.2, 9.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from acks.document import check_depth, check_thing_id, invalid_json
from acks.errors import error
from acks.header_values import check_values
from acks.headers import AckOptions, Setter, http_options, parse_duration_ms
from acks.live import CLAIM, Address, check_subject, is_feature_id
from acks.payloads import BINARY_TYPE, Form, check_size, read_content_type, value_of
from acks.preconditions import parse_preconditions
from acks.signals import Live
from app.api.acks import accepted_answer, prefers_async
from app.api.events import Events, Request
from app.api.http import (
    Receive,
    RequestHead,
    Rules,
    Scope,
    Send,
    send_answer,
    split_path,
)
from app.api.live import answer_live
from app.api.reception import Reception, allow
from app.api.sse import wants_stream
from app.gateway import Gateway
from app.store.instant import instant, now_ms

CLAIM_MAX_MS = 600_000
"""The longest timeout that a claim may name, ms; it does not wait longer than others."""
_BOXES = ("inbox", "outbox")


class Messages:
    """POST of messages below ``/api/2/things/{thingId}``, GET of streams of them."""

    def __init__(
        self, gateway: Gateway, reception: Reception, events: Events, rules: Rules
    ) -> None:
        self._gateway = gateway
        self._reception = reception
        self._events = events
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head, principal = await self._reception.open(scope)
        path = self._reception.path(scope)
        if scope["method"] == "GET" and wants_stream(head):
            request = Request(scope, receive, send, head, principal)
            return await self._events.of_messages(request, *_watched(path))
        address = message_address(path)
        allow(scope["method"], path, "POST")
        body = await self._reception.body(receive)
        live = message(head, principal.subjects, self._rules, address, body)
        if prefers_async(head):
            await self._gateway.accept(live)
            answer = accepted_answer(scope, head, live)
        else:
            answer = await answer_live(self._gateway, live)
        await send_answer(send, *answer)
        return answer.status


def is_message_path(path: str) -> bool:
    """Whether a path below ``/api/2/things/`` leads to a message box, as it was sent."""
    rest = path.split("/")[5:]
    if rest and rest[0] == "features":
        rest = rest[2:]
    return bool(rest) and rest[0] in _BOXES


@lru_cache(maxsize=4096)
def message_address(path: str) -> Address:
    """Read the path of a message.

    Raises ``things:id.invalid``, ``gateway:resource.notfound``, ``messages:subject.invalid``.
    """
    place, kind = _place(path)
    if kind == CLAIM and place.box == "inbox" and place.feature is None and not place.subject:
        return place._replace(subject=CLAIM)
    if kind != "messages":
        raise error("gateway:resource.notfound", path=path)
    check_subject(place.subject)
    return place


def _watched(path: str) -> tuple[str, Callable[[str], bool]]:
    """The thing whose messages are watched, and which of them, by their paths: a subject, or all.

    Raises as :func:`message_address`.
    """
    place, kind = _place(path)
    if kind != "messages":
        raise error("gateway:resource.notfound", path=path)
    wanted = place.path
    if not place.subject:
        return place.thing_id, lambda path: path.startswith(wanted)
    check_subject(place.subject)
    return place.thing_id, lambda path: path == wanted


def _place(path: str) -> tuple[Address, str]:
    """Where a path leads, with a subject that may be missing, and what follows the box in it.

    Raises ``things:id.invalid``, ``gateway:resource.notfound``.
    """
    segments = split_path(path)[3:]
    thing_id, rest = check_thing_id(segments[0]), segments[1:]
    feature = None
    if rest[0] == "features":
        # As in the path of a twin's feature, also what is escaped like a JSON pointer is meant.
        feature, rest = rest[1].replace("~1", "/").replace("~0", "~"), rest[2:]
        if not is_feature_id(feature):
            raise error("gateway:resource.notfound", path=path)
    subject = "/".join(rest[2:]).lstrip("/")
    return Address(thing_id, rest[0], subject, feature), "".join(rest[1:2])


@lru_cache(maxsize=1024)
def message_options(
    requested_acks: str | None,
    response_required: str | None,
    timeout: str | None,
    rules: Rules,
    claim: bool = False,
) -> AckOptions:
    """The ack headers of a message, read and completed.

    Timeouts of a second and more count in whole seconds (spec 2.2). Raises ``header.invalid``,
    ``timeout.invalid``.
    """
    given: tuple[tuple[str, str], ...] = (("channel", "live"),)
    waited = None
    if timeout is not None:
        limit = CLAIM_MAX_MS if claim else rules.max_timeout_ms
        asked = parse_duration_ms(timeout)
        if asked // 1000 > limit // 1000:
            reason = f"The timeout <{asked:,}ms> is not inside its allowed bounds <0ms - "
            raise error("timeout.invalid", reason=f"{reason}{limit:,}ms>")
        shown = f"{asked // 1000}" if asked >= 1000 or not asked else f"{asked}ms"
        given = (("timeout", shown), *given)
        waited = f"{min(parse_duration_ms(shown), rules.max_timeout_ms)}ms"
    options = http_options(Setter.LIVE, requested_acks, response_required, waited, *rules)
    return replace(options, given=given)


def message(
    head: RequestHead, subjects: tuple[str, ...], rules: Rules, address: Address, body: bytes
) -> Live:
    """The message that a POST sends. Raises GatewayError for bad headers or payload."""
    known = head.known
    check_values(known)
    options = message_options(
        known.get("requested-acks"),
        known.get("response-required"),
        known.get("timeout"),
        rules,
        address.claim,
    )
    headers = {
        **head.carried,
        "timeout": str(options.timeout_ms // 1000),
        **dict(options.given),
        **address.headers(instant(now_ms())),
    }
    value = None
    if body:
        check_size(len(body))
        given = known.get("content-type") or BINARY_TYPE
        value, headers["content-type"] = _payload(body, given)
    elif "content-type" in known:
        headers["content-type"] = read_content_type(known["content-type"]).shown
    checks = parse_preconditions(known) if "condition" in known else None
    return Live(
        address.thing_id,
        "messages",
        address.subject,
        address.path,
        value,
        head.correlation_id,
        options,
        subjects,
        headers,
        None,
        checks,
    )


def _payload(body: bytes, given: str) -> tuple[Any, str]:
    """A body as it stands in the envelope, and its content type. Raises GatewayError."""
    content_type = read_content_type(given)
    if content_type.form is not Form.JSON:
        return value_of(body, content_type), content_type.shown
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        shown = body[:200].decode("utf-8", "replace")
        raise invalid_json(shown, f"It is not valid JSON: {problem}.") from None
    check_depth(value, body.count(b"{") + body.count(b"["))
    # As it came: what a parser makes of a number may differ from what was written.
    return orjson.Fragment(body), content_type.shown
