"""How an MQTT connection is set up: its ``specificConfig`` (spec websocket-... 4.1, 4.4).

By Ditto's names: ``clientId``, ``publisherId``, ``cleanSession``, ``separatePublisherClient``,
``reconnectForRedelivery``, ``reconnectForRedeliveryDelay``, ``keepAlive``, ``lastWillTopic``,
``lastWillQos``, ``lastWillRetain``, ``lastWillMessage``; of our own: ``sessionExpiryInterval``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from connections.driver import OpenError
from connections.model import DRY_RUN, Connection

LEVELS = {"0": 0, "1": 1, "2": 2}
"""QoS as a text."""
FLAGS = {"true": True, "false": False}
_LONGEST_KEEP_ALIVE_S = 65_535
_NEVER_S = 0xFFFF_FFFF  # a session that does not expire (MQTT 5, 3.1.2.11.2)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes when the client is gone without a word."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(frozen=True, slots=True)
class Options:
    """What ``specificConfig`` says, for one client of the connection."""

    version: int  # 4: MQTT 3.1.1, 5: MQTT 5
    client_id: str
    publisher_id: str
    clean: bool
    apart: bool  # whether publications go by a client of their own
    redelivers: bool  # whether what is to come again makes it reconnect
    delay_s: float  # before it reconnects for that
    keep_alive_s: int
    expiry_s: int  # how long the broker keeps the session (MQTT 5)
    will: Will | None


def options(connection: Connection, client: int) -> Options:
    """The options of client number ``client``.

    The number is part of the id of all but the first, so that each keeps its session, and the one
    of a single client is gone on with when there are to be more.
    A connection that is only tried gets a session of its own that ends with it: the id of the
    real one would throw that one out. Raises OpenError (misconfigured).
    """
    specific = connection.specific
    trial = connection.id.endswith(DRY_RUN)
    apart = _value(specific, "separatePublisherClient", "false", _flag)
    client_id = connection.id if trial else specific.get("clientId") or connection.id
    publisher_id = "" if trial else specific.get("publisherId", "")
    publisher_id = publisher_id or f"{client_id}p"
    if client > 0:
        client_id, publisher_id = f"{client_id}_{client}", f"{publisher_id}_{client}"
    if apart and client_id == publisher_id:
        raise OpenError("misconfigured", "<clientId> and <publisherId> are the same.")
    return Options(
        version=5 if connection.kind == "mqtt-5" else 4,
        client_id=client_id,
        publisher_id=publisher_id,
        # Ditto's documentation says false, its code the opposite of reconnectForRedelivery. False
        # loses nothing.
        clean=trial or _value(specific, "cleanSession", "false", _flag),
        apart=apart,
        redelivers=_value(specific, "reconnectForRedelivery", "false", _flag),
        delay_s=max(1.0, _value(specific, "reconnectForRedeliveryDelay", "10s", _seconds)),
        keep_alive_s=round(_value(specific, "keepAlive", "60s", _keep_alive)),
        expiry_s=round(min(_value(specific, "sessionExpiryInterval", "7d", _seconds), _NEVER_S)),
        will=_will(specific),
    )


def _will(specific: Mapping[str, str]) -> Will | None:
    topic = specific.get("lastWillTopic")
    if not topic:
        return None
    if "+" in topic or "#" in topic:  # a broker would hang up without a reason
        raise OpenError("misconfigured", f"The value <{topic}> of <lastWillTopic> is not valid.")
    return Will(
        topic,
        specific.get("lastWillMessage", "").encode(),
        _value(specific, "lastWillQos", "0", LEVELS.get),
        _value(specific, "lastWillRetain", "false", _flag),
    )


def _value(
    specific: Mapping[str, str], name: str, default: str, read: Callable[[str], _T | None]
) -> _T:
    text = specific.get(name, default)
    found = read(text.strip())
    if found is None:
        raise OpenError("misconfigured", f"The value <{text}> of <{name}> is not valid.")
    return found


def _flag(text: str) -> bool | None:
    return FLAGS.get(text.lower())


_DURATION = re.compile(r"(\d{1,9})\s*(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def _seconds(text: str) -> float | None:
    found = _DURATION.fullmatch(text)
    return int(found[1]) * _UNITS[found[2] or "s"] if found else None


def _keep_alive(text: str) -> float | None:
    seconds = _seconds(text)
    return seconds if seconds is not None and 1 <= seconds <= _LONGEST_KEEP_ALIVE_S else None
