"""What a policy's subject says about announcements of its deletion, its field ``announcement``.

Source: Ditto's schema of a policy, and the texts on announcements in its HTTP API.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from acks.errors import GatewayError, error
from acks.headers import parse_duration_ms
from acks.labels import BUILT_IN, is_label, is_resolved
from acks.signals import JsonObject

MAX_WAIT_MS: Final = 60_000
"""How long acks of one announcement are awaited at most, whatever it says, ms."""
SPREAD_MS: Final = 5 * 60_000
"""By how much an announcement may come earlier if the subject does not say, ms."""

_BEFORE = re.compile(r"([1-9]\d{0,17})([hms])", re.ASCII)


class AnnouncementSettings(NamedTuple):
    """A checked ``announcement``, times in ms.

    ``before_ms`` is None if nothing is announced ahead of the expiry; ``labels`` are the acks that
    an announcement asks for, each time waited for ``wait_ms``.
    """

    before_ms: int | None
    when_deleted: bool
    labels: tuple[str, ...]
    wait_ms: int
    spread_ms: int


def check_announcement(value: Any) -> JsonObject:
    """Check an ``announcement`` and return what is to be stored of it.

    Raises ``json.format.invalid``, ``json.field.missing``, ``policies:entry.invalid``,
    ``acknowledgement:label.invalid``.
    """
    if not isinstance(value, dict):
        raise error("json.format.invalid", reason="An announcement must be a JSON object.")
    checked: JsonObject = {}
    for name, check in (
        ("beforeExpiry", _check_before),
        ("whenDeleted", _check_when_deleted),
        ("requestedAcks", _check_acks),
        ("randomizationInterval", _check_duration),
    ):
        given = value.get(name)
        if given is not None:
            checked[name] = check(name, given)
    return checked


def read_announcement(checked: JsonObject) -> AnnouncementSettings:
    """What a checked ``announcement`` means."""
    before = checked.get("beforeExpiry")
    spread = checked.get("randomizationInterval")
    acks = checked.get("requestedAcks", {})
    wait = acks.get("timeout")
    return AnnouncementSettings(
        None if before is None else parse_duration_ms(before),
        checked.get("whenDeleted", False),
        tuple(dict.fromkeys(acks.get("labels", ()))),
        MAX_WAIT_MS if wait is None else min(parse_duration_ms(wait), MAX_WAIT_MS),
        SPREAD_MS if spread is None else parse_duration_ms(spread),
    )


def _check_before(name: str, value: Any) -> str:
    if not isinstance(value, str) or _BEFORE.fullmatch(value) is None:
        raise _invalid(f"'{name}' is a positive integer and 'h', 'm' or 's', such as '5m'.")
    return value


def _check_when_deleted(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise error("json.format.invalid", reason=f"The field '{name}' must be a boolean.")
    return value


def _check_duration(name: str, value: Any) -> str:
    try:
        if isinstance(value, str):
            parse_duration_ms(value)
            return value
    except GatewayError:
        pass  # the code of that error speaks of a request's timeout
    raise _invalid(f"'{name}' is a duration, such as '30s'.")


def _check_acks(name: str, value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise error("json.format.invalid", reason=f"The field '{name}' must be a JSON object.")
    labels = value.get("labels")
    if labels is None:
        raise error("json.field.missing", field=f"{name}/labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise error("json.format.invalid", reason="The field 'labels' must be a list of strings.")
    for label in labels:
        if not is_label(label):
            raise error("acknowledgement:label.invalid", label=label)
        if label in BUILT_IN or not is_resolved(label):
            raise _invalid(f"Nobody could acknowledge an announcement with the label '{label}'.")
    checked: JsonObject = {"labels": labels}
    timeout = value.get("timeout")
    if timeout is not None:
        checked["timeout"] = _check_duration("timeout", timeout)
        if parse_duration_ms(timeout) == 0:
            raise _invalid("The 'timeout' of requested acknowledgements must be positive.")
    return checked


def _invalid(reason: str) -> GatewayError:
    return error("policies:entry.invalid", reason=reason)
