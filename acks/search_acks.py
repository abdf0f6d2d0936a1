"""search-persisted: who asks for it, and what each of them is told (spec acks-and-http 8).

An entry of the journal that asks has one fact more than others, ``i`` in its field ``m``: a number
by which the node that waits tells its requests apart, as correlation-ids may come again. Nobody but
the indexer reads it. When the change is in the search index, the indexer sends that node a notice
(:func:`notice_of`); the node makes the ack out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from acks.labels import SEARCH_PERSISTED
from acks.signals import Acknowledgement

INDEXED = "search-persisted#indexed"
"""Stands where a label stands in a notice from the indexer to a node; no label looks so."""


class Indexing(Enum):
    """What has become of a change in the search index; the value is the status of its ack."""

    WRITTEN = 204
    UNCHANGED = 200  # it was there already: a weak ack
    FAILED = 500


_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})
_HEADERS: Mapping[str, Any] = MappingProxyType({"response-required": False})
_WEAK: Mapping[str, Any] = MappingProxyType({"response-required": False, "ditto-weak-ack": True})


class Asked(NamedTuple):
    """What a journal entry says that asks for ``search-persisted``.

    ``origin`` is the node that waits, or ASYNC; ``deadline`` is when it waits no longer, in ms
    since the epoch; ``token`` is the node's number for the request.
    """

    thing_id: str
    revision: int
    correlation_id: str
    origin: str
    deadline: int
    token: int


def asked_by(meta: Mapping[str, Any]) -> Asked | None:
    """What an entry asks for, read from the JSON of its field ``m``; None if not for this.

    Raises KeyError if a fact is missing.
    """
    token = meta.get("i")
    if token is None:
        return None
    return Asked(meta["id"], meta["r"], meta["c"], meta["o"], meta["d"], token)


def indexing_of(
    asked: Asked, result: Indexing, before: int = 0, after: int | None = None
) -> Indexing:
    """What became of one change, from what became of its thing (``result``).

    ``before`` is the revision of the thing that was in the index before it was written, 0 for none;
    ``after`` the one that is in it now, None for none. The index takes the newest state, so a
    change may have been in it before its entry was read; or never, if the store has lost it.
    """
    if after is not None and after < asked.revision:
        return Indexing.FAILED
    if result is Indexing.WRITTEN and asked.revision <= before:
        return Indexing.UNCHANGED
    return result


def search_ack(thing_id: str, correlation_id: str, indexing: Indexing) -> Acknowledgement:
    """The ack: no payload, and headers made from scratch, without a correlation-id (spec 8)."""
    headers = _WEAK if indexing is Indexing.UNCHANGED else _HEADERS
    return Acknowledgement(
        SEARCH_PERSISTED, thing_id, correlation_id, indexing.value, headers=headers
    )


def notice_of(asked: Asked, indexing: Indexing, index: str = "") -> Acknowledgement:
    """What the node that waits is told; its payload is the token of the request.

    ``index`` is the name of the index that has the change, "" if there is but one.
    """
    return Acknowledgement(
        INDEXED,
        asked.thing_id,
        asked.correlation_id,
        indexing.value,
        asked.token,
        {"index": index} if index else _NO_HEADERS,
    )


def concerns(notice: Acknowledgement, index: str | None) -> bool:
    """Whether a notice is of the index that is searched here.

    ``index`` is its name, "" if none is searched, None if the name is not known yet: then notices
    of indexes with a name are not for us, lest the one be acknowledged and the other searched.
    """
    named = notice.headers.get("index")
    return named is None or index == "" or named == index


def ack_of(notice: Acknowledgement) -> Acknowledgement:
    """The ack that a notice stands for. Raises ValueError if it has another status than ours."""
    return search_ack(notice.thing_id, notice.correlation_id, Indexing(notice.status))
