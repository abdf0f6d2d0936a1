"""Settlement: what a broker is told about a message it has given us (design, section 3).

Source: spec websocket-... 4.4; its rules are named where they are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from acks.errors import GatewayError


class Settlement(Enum):
    """What becomes of a consumed message."""

    ACCEPT = "accept"
    REDELIVER = "redeliver"
    DISCARD = "discard"


class Reply(NamedTuple):
    """The answer to one command of a message.

    ``statuses`` are those of its single responses or acks, aggregated ones unpacked; ``live``: it
    is a live response. ``error`` is an error that stands in place of a response.
    """

    statuses: tuple[int, ...] = ()
    live: bool = False
    error: GatewayError | None = None


def decide(replies: Sequence[Reply], expected: int, *, late: bool = False) -> Settlement | None:
    """How a message is settled, None as long as replies have to be waited for.

    ``expected`` is how many commands of it asked for acks, once that is known; ``late``: the time
    of waiting (100 s) is over.
    """
    if expected == 0:
        return Settlement.ACCEPT  # rule 1
    for reply in replies:
        if reply.error is not None:
            return _settled_by_error(reply.error.status)  # rule 5
    failed = [status for reply in replies for status in reply.statuses if _failed(reply, status)]
    if len(replies) == expected and not failed:
        return Settlement.ACCEPT  # rule 3
    if len(replies) < expected and not late:
        return None
    # Rules 3 and 4; more replies than commands count as not arrived.
    if not failed or any(_comes_again(status) for status in failed):
        return Settlement.REDELIVER
    return Settlement.DISCARD


def _failed(reply: Reply, status: int) -> bool:
    """Rule 2: whoever answers over the live channel has got the message, whatever it says."""
    return status == 408 if reply.live else status >= 400


def _comes_again(status: int) -> bool:
    return status in (408, 424) or status >= 500


def _settled_by_error(status: int) -> Settlement:
    if status == 412:
        return Settlement.ACCEPT
    return Settlement.REDELIVER if _comes_again(status) else Settlement.DISCARD
