"""Places in the journal as a user names them: in ``startingOffsets``, ``endingTimestamp``, ...

What a place means for each shard is found out by the journal (pages.py): it has to be asked.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_ID: Final = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)
_ROW: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,20}-[0-9]{1,20})", re.ASCII)
_MOMENT: Final = re.compile(r"[0-9]{1,15}|[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].*", re.ASCII)
_OPAQUE: Final = re.compile(r"1[A-Za-z0-9_-]+", re.ASCII)
_HIGHEST: Final = 2**64 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
#: Key of an offset that names no shard: where the batch began that ended at this offset.
SINCE: Final = "since"
EXAMPLES: Final = (
    "earliest, latest, a bookmark (3:1700000000000-0), a JSON map of all shards "
    '({"0": "1700000000000-0", "1": "latest"}), or an instant (2026-02-03T04:05:06Z, or ms since '
    "the epoch)"
)


class PlaceError(ValueError):
    """A text is no place in the journal; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Named:
    """``earliest``: before everything that is there. ``latest``: after everything."""

    name: str


@dataclass(frozen=True, slots=True)
class Moment:
    """Between what was appended before ``ms`` (since the epoch, the store's clock) and the rest."""

    ms: int


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Right after the entry ``stream_id`` of ``shard``: the column ``bookmark`` of a row.

    Of the other shards nothing says what was done, so nothing appended since is left out: as a
    start it stands for the entry's millisecond there, as an end for the end of that millisecond.
    """

    shard: int
    stream_id: str


@dataclass(frozen=True, slots=True)
class Map:
    """A place for every shard: shard number as text -> last id before it, earliest or latest."""

    places: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """The bookmark that the gateway's event streams hand out (acks/bookmark.py)."""

    text: str


Place: TypeAlias = Named | Moment | Bookmark | Map | Opaque


def parse_place(text: str) -> Place:
    """Read ``startingOffsets`` or ``endingOffsets``. Raises :class:`PlaceError`."""
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST):
        return Named(text.lower())
    if text.startswith("{"):
        return _parse_map(text)
    if found := _ROW.fullmatch(text):
        return Bookmark(int(found[1]), _checked(found[2]))
    if _MOMENT.fullmatch(text):
        return parse_moment(text)
    if _OPAQUE.fullmatch(text):
        return Opaque(text)
    raise PlaceError(f"expected {EXAMPLES}, not {_shown(text)}")


def parse_moment(text: str) -> Moment:
    """Read ``startingTimestamp`` or ``endingTimestamp``: ms since the epoch, or ISO-8601.

    Raises :class:`PlaceError`, also for a time without a zone: it would depend on the machine.
    """
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return Moment(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise PlaceError(
            "expected an instant such as 2026-02-03T04:05:06Z, or ms since the epoch, not "
            f"{_shown(text)}"
        ) from None
    if moment.tzinfo is None:
        raise PlaceError(f"the instant {_shown(text)} needs a zone, as in 2026-02-03T04:05:06Z")
    # Rounded up: what is compared with it has whole milliseconds.
    return Moment(max(0, -((_EPOCH - moment) // _MILLISECOND)))


def _parse_map(text: str) -> Map:
    try:
        given: Any = json.loads(text)
    except ValueError as problem:
        raise PlaceError(f"a JSON map of shards that cannot be read: {problem}") from None
    places: list[tuple[str, str]] = []
    for shard, place in given.items():
        if shard == SINCE:
            continue
        if not (shard.isascii() and shard.isdigit()):
            raise PlaceError(f"{_shown(shard)} is no shard number")
        if not isinstance(place, str) or not (place in (EARLIEST, LATEST) or _ID.fullmatch(place)):
            raise PlaceError(
                f"the place of shard {shard} must be a stream id such as 1700000000000-0, "
                f"{EARLIEST} or {LATEST}, not {_shown(json.dumps(place))}"
            )
        places.append((shard, place if place in (EARLIEST, LATEST) else _checked(place)))
    return Map(tuple(places))


def _checked(stream_id: str) -> str:
    if any(int(part) > _HIGHEST for part in stream_id.split("-")):
        raise PlaceError(f"{stream_id} is no stream id: its numbers have at most 64 bits")
    return stream_id


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:64] + "...")
