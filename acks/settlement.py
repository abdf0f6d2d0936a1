"""Settlement: what a broker is told about a message it has given us (design, section 3)."""

from __future__ import annotations

from enum import Enum


class Settlement(Enum):
    """What becomes of a consumed message."""

    ACCEPT = "accept"
    REDELIVER = "redeliver"
    DISCARD = "discard"
