"""A twin as bytes in the store: ``tag LF meta LF document`` (layout: acks/journal.py).

The tag names the write that made the state. It has a fixed length, so that the commit script
compares it without reading JSON, and it is unique per write: two writers that compute the same
revision number never take each other's state for their own.
"""

from __future__ import annotations

import orjson

from acks.document import Twin


def encode(twin: Twin, document: bytes) -> bytes:
    """The record of ``twin``, whose document is already encoded."""
    meta = orjson.dumps(
        {"r": twin.revision, "p": twin.policy_id, "c": twin.created, "m": twin.modified}
    )
    return b"%b\n%b\n%b" % (twin.tag.encode(), meta, document)


def decode(record: bytes) -> tuple[Twin, bytes]:
    """Read a record back: the twin without its document, and that as JSON text.

    Raises ValueError or KeyError if it is not one of ours.
    """
    tag, meta_json, document = record.split(b"\n", 2)
    meta = orjson.loads(meta_json)
    return Twin(tag.decode(), meta["r"], meta["p"], meta["c"], meta["m"], None), document
