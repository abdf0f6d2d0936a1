"""Messages over HTTP: to and from things and features, and claims (spec 2.2, 9.3)."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from acks.document import MAX_ID_LENGTH, check_depth, check_thing_id, invalid_json
from acks.errors import error
from acks.headers import AckOptions, Setter, http_options, parse_duration_ms
from acks.live import CLAIM, message_path
from acks.payloads import BINARY_TYPE, Form, check_size, read_content_type, value_of
from acks.preconditions import parse_preconditions
from acks.signals import Live
from app.api.acks import accepted_answer, prefers_async
from app.api.auth import Authenticator
from app.api.http import (
    Receive,
    RequestHead,
    Rules,
    Scope,
    Send,
    raw_path,
    read_body,
    send_answer,
    split_path,
)
from app.api.live import answer_live
from app.gateway import Gateway
from app.store.instant import instant

CLAIM_MAX_MS = 600_000
"""The longest timeout that a claim may name, ms; it does not wait longer than others."""
_BOXES = {"inbox": "TO", "outbox": "FROM"}
_SUBJECT_LENGTH = 1024


class Address(NamedTuple):
    """Where a message goes; ``box`` is inbox or outbox, ``feature`` None for the thing itself."""

    thing_id: str
    box: str
    subject: str
    feature: str | None

    @property
    def claim(self) -> bool:
        """Whether it asks for permissions."""
        return (self.box, self.subject, self.feature) == ("inbox", CLAIM, None)


class Messages:
    """POST of messages below ``/api/2/things/{thingId}``."""

    def __init__(
        self,
        gateway: Gateway,
        authenticator: Authenticator,
        rules: Rules,
        *,
        max_body: int,
        max_headers: int,
    ) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._rules = rules
        self._max_body = max_body
        self._max_headers = max_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        head = RequestHead(scope, self._max_headers)
        scope["correlation_id"] = head.correlation_id
        principal = await self._authenticator.check(head.authorization)
        path, method = raw_path(scope), scope["method"]
        if len(path) > self._max_headers:
            raise error("headers.too.large", limit=self._max_headers)
        address = message_address(path)
        if method != "POST":
            raise error("gateway:method.notallowed", method=method, path=path, allowed="POST")
        body = await read_body(receive, self._max_body)
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
    segments = split_path(path)[3:]
    thing_id, rest = check_thing_id(segments[0]), segments[1:]
    feature = None
    if rest[0] == "features":
        # As in the path of a twin's feature, also what is escaped like a JSON pointer is meant.
        feature, rest = rest[1].replace("~1", "/").replace("~0", "~"), rest[2:]
        if not feature or not feature.isprintable() or len(feature) > MAX_ID_LENGTH:
            raise error("gateway:resource.notfound", path=path)
    box, kind = rest[0], "".join(rest[1:2])
    if kind == CLAIM and box == "inbox" and feature is None and not any(rest[2:]):
        return Address(thing_id, box, CLAIM, None)
    if kind != "messages":
        raise error("gateway:resource.notfound", path=path)
    subject = "/".join(rest[2:]).lstrip("/")
    reason = None
    if not subject:
        reason = "It is empty; it is what follows '/messages/' in the path."
    elif not subject.isprintable() or len(subject) > _SUBJECT_LENGTH:
        reason = f"It has at most {_SUBJECT_LENGTH} characters, all of them printable."
    if reason is not None:
        raise error("messages:subject.invalid", subject=subject[:64], reason=reason)
    return Address(thing_id, box, subject, feature)


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
        "ditto-message-direction": _BOXES[address.box],
        "ditto-message-subject": address.subject,
        "ditto-message-thing-id": address.thing_id,
        "timestamp": instant(time.time_ns() // 1_000_000),
    }
    if address.feature is not None:
        headers["ditto-message-feature-id"] = address.feature
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
        message_path(address.box, address.subject, address.feature),
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
