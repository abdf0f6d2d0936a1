"""Values that a header cannot have, whatever the request asks for (spec acks-and-http 1.3, 2, 9.2).

Also a request to which a header means nothing is refused if its value is none: a misspelt one is
noticed, and does not mean something else where the header counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from acks.headers import parse_boolean, parse_duration_ms, parse_requested_acks
from acks.live import parse_channel, parse_timeout_strategy
from acks.preconditions import parse_if_equal, parse_tags


def _boolean(name: str) -> Callable[[str], object]:
    return lambda text: parse_boolean(name, text)


def _tags(name: str) -> Callable[[str], object]:
    return lambda text: parse_tags(name, text)


_CHECKS: dict[str, Callable[[str], object]] = {
    "response-required": _boolean("response-required"),
    "allow-policy-lockout": _boolean("allow-policy-lockout"),
    "dry-run": _boolean("dry-run"),
    "timeout": parse_duration_ms,
    "requested-acks": parse_requested_acks,
    "channel": parse_channel,
    "live-channel-timeout-strategy": parse_timeout_strategy,
    "if-match": _tags("if-match"),
    "if-none-match": _tags("if-none-match"),
    "if-equal": parse_if_equal,
}


def check_values(known: Mapping[str, str]) -> None:
    """Check the values of interpreted headers, by lower-case name.

    Raises ``header.invalid``, ``timeout.invalid``.
    """
    for name, text in known.items():
        check = _CHECKS.get(name)
        if check is not None:
            check(text)
