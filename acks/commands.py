"""What a wire has read of a request -> command or query: checks that every wire shares.

Sources: spec acks-and-http 2.3, 9.1, 9.2; websocket-... 5.5, 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from acks.changes import check_merge, check_put
from acks.document import check_thing_id
from acks.errors import error
from acks.fields import Selector
from acks.header_values import check_values
from acks.headers import AckOptions, allows_lockout, refuse_headers
from acks.policy_document import check_policy
from acks.preconditions import Preconditions, parse_preconditions
from acks.signals import Command, JsonObject, Query

MAX_IDS = 500
"""Things that one request may ask for; they are answered in one go."""
_UNUSUAL = frozenset(
    {
        "condition", "if-match", "if-none-match", "if-equal", "live-channel-condition", "dry-run",
        "merge-thing-patch-conditions", "put-metadata", "delete-metadata", "allow-policy-lockout",
        "live-channel-timeout-strategy",
    }
)  # fmt: skip
"""Headers that the common command does not have: one look tells."""
_NOT_SERVED = ("dry-run", "merge-thing-patch-conditions", "put-metadata", "delete-metadata")
_HISTORY = ("at-historical-revision", "at-historical-timestamp")


class Head(Protocol):
    """The headers of a request, as far as a signal needs them."""

    @property
    def known(self) -> Mapping[str, str]:
        """Interpreted headers."""

    @property
    def carried(self) -> Mapping[str, str]:
        """Headers that go on into events and answers."""

    @property
    def correlation_id(self) -> str:
        """The id by which the requester knows its answer."""


def parse_checks(known: Mapping[str, str]) -> Preconditions | None:
    """The preconditions of a command; None if it has none.

    Raises ``header.invalid``, ``rql.expression.invalid``, and
    ``things:live.channelcondition.notallowed``.
    """
    if _UNUSUAL.isdisjoint(known):
        return None
    check_values(known)
    if "live-channel-condition" in known:
        raise error("things:live.channelcondition.notallowed")
    refuse_headers(known, _NOT_SERVED)
    return parse_preconditions(known)


def make_command(
    head: Head,
    options: AckOptions,
    subjects: tuple[str, ...],
    checks: Preconditions | None,
    thing_id: str,
    path: tuple[str, ...],
    action: str,
    value: Any,
    now_ms: int,
    origin: str | None = None,
) -> Command:
    """A change of a thing or a part of it, its ``value`` checked; a delete has none.

    ``now_ms`` is since the epoch, ``origin`` the session that asks.
    Raises what :func:`check_put`, :func:`check_merge` and :func:`check_policy` raise.
    """
    policy = None
    if action != "delete":
        if not path:
            policy = _inline_policy(thing_id, value, subjects[0], now_ms)
        check = check_merge if action == "merge" else check_put
        value = check(thing_id, path, value)
    return Command(
        thing_id,
        path,
        value,
        head.correlation_id,
        options,
        subjects,
        head.carried,
        policy,
        origin,
        action,
        checks,
        allow_lockout=policy is not None and allows_lockout(head.known),
    )


def make_query(
    head: Head,
    timeout_ms: int,
    subjects: tuple[str, ...],
    thing_id: str,
    path: tuple[str, ...],
    fields: Selector | None,
) -> Query:
    """A question about a thing or a part of it; ``timeout_ms`` is how long it may take.

    Raises ``header.invalid``, ``rql.expression.invalid``.
    """
    return Query(
        thing_id,
        path,
        head.correlation_id,
        timeout_ms,
        subjects,
        fields,
        parse_preconditions(head.known),
    )


def check_query(known: Mapping[str, str]) -> None:
    """Refuse what no query may have, or what is not served (spec 2.3).

    Raises ``command.headers.invalid``, ``header.invalid``, ``timeout.invalid``.
    """
    check_values(known)
    if known.get("response-required") == "false":
        raise error("command.headers.invalid")
    refuse_headers(known, _HISTORY)


def check_ids(ids: Iterable[str], known: Mapping[str, str]) -> list[str]:
    """The ids of a query for several things, each once.

    Raises ``things:id.invalid``, ``request.toolarge`` for more than :data:`MAX_IDS`, and
    ``header.invalid`` for a condition.
    """
    found = list(dict.fromkeys(check_thing_id(one) for one in ids))
    if len(found) > MAX_IDS:
        raise error("request.toolarge", message=f"More than {MAX_IDS} Things at once.", limit=0)
    refuse_headers(known, ("condition",), "A condition is for one Thing at a time.")
    return found


def _inline_policy(thing_id: str, value: Any, requester: str, now_ms: int) -> JsonObject | None:
    """The ``_policy`` of a thing to create, checked; its id is the thing's."""
    if not isinstance(value, dict):
        return None
    if "_copyPolicyFrom" in value:
        raise error(
            "json.format.invalid",
            reason="This gateway does not copy policies yet: give '_policy' or 'policyId'.",
        )
    policy = value.get("_policy")
    if policy is None:
        return None
    given = policy.get("policyId", thing_id) if isinstance(policy, dict) else thing_id
    if given != thing_id or value.get("policyId", thing_id) != thing_id:
        raise error(
            "policies:entry.invalid", reason="The policyId of '_policy' must be the thing's ID."
        )
    return check_policy(thing_id, policy, requester, now_ms)
