"""Acks that the source sends itself, for the options ``ackLabels`` and ``weakAckLabels``.

A batch is acknowledged once it is in the checkpoint. Which requests wait is read from the journal
again then, so that it makes no difference who read the batch, and nothing is forgotten when the
query ends between the checkpoint and the acks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from acks.envelopes import WEAK_FILTERED, WEAK_UNSUBSCRIBED
from acks.journal import EVENT, EntryMeta, leases_key, owners_key
from connections.spark.labels import SCRIPT, LabelLease, LabelTaken
from connections.spark.options import ReadOptions
from connections.spark.pages import Journal, position
from connections.spark.sending import Ack, commands
from connections.spark.store import call, calls
from connections.spark.wanted import Wanted

log = logging.getLogger(__name__)

_TAKEOVER: Final = 9.0  # s: more than the lease of a query that has just ended without a word
_PAUSE: Final = 0.2  # s between two tries to claim
_QUERY: Final = b"spark-"  # how the holders of labels begin that are queries
_PAGE: Final = 500  # entries looked at in one go: bounds how long the store is busy with it
# The entries after ARGV[1] up to ARGV[2], at most ARGV[3] of them, that name one of the other
# arguments in their meta: how many were looked at, the last of them, and what was found.
_ASKING: Final = """
local page = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local found = {}
for _, entry in ipairs(page) do
  local fields = entry[2]
  for at = 1, #fields, 2 do
    if fields[at] == 'm' then
      for label = 4, #ARGV do
        if string.find(fields[at + 1], ARGV[label], 1, true) then
          found[#found + 1] = fields
          break
        end
      end
    end
  end
end
return {#page, #page > 0 and page[#page][1] or ARGV[2], found}
"""


class AutomaticAcks:
    """Sends the acks of one query. The lease of its labels is taken by :meth:`claim`, not before.

    ``ack_labels`` are the query's own: 200 for its rows, a weak ack for what is no row of it. Of
    ``weak_labels``, which another part of the query declares, only the weak acks are sent.
    """

    def __init__(self, options: ReadOptions, journal: Journal) -> None:
        self._options = options
        self._journal = journal
        self._wanted = Wanted.of(options)
        self._lease: LabelLease | None = None
        self._settled: object = None

    def claim(self) -> None:
        """Own the labels. Waits some seconds for the lease of a query that has just ended.

        Raises LabelTaken if somebody else has one all the time.
        """
        if self._lease is not None or not self._options.ack_labels:
            return
        options, deadline = self._options, time.monotonic() + _TAKEOVER
        while self._lease is None:
            try:
                self._lease = LabelLease(
                    options.url, options.prefix, options.ack_labels, group=options.ack_group
                )
            except LabelTaken:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)

    def settle(self, since: Mapping[str, str], kept: Mapping[str, Any]) -> None:
        """Send the acks of the batch that began at ``since`` and ended at the offset ``kept``.

        Does nothing if that was done before. Raises what :meth:`claim` raises, LabelLost if the
        lease cannot be renewed, and redis.RedisError: what was not sent is sent by the next call.
        """
        self.claim()
        if self._settled == kept:
            return
        for shard, start in since.items():
            for page in self._asking(shard, start, kept[shard]):
                self._send([ack for fields in page for ack in self._acks(fields)])
        self._settled = dict(kept)

    def close(self) -> None:
        """Free the labels."""
        if self._lease is not None:
            self._lease.close()

    def _asking(self, shard: str, start: str, end: str) -> Iterator[list[dict[bytes, bytes]]]:
        """Entries of a range that may ask for one of the labels, page by page."""
        labels = [f'"{label}"' for label in (*self._options.ack_labels, *self._options.weak_labels)]
        more = True
        while more and position(start) < position(end):
            key = self._journal.key(shard)
            count, last, found = call(
                self._options.url, "EVAL", _ASKING, 1, key, start, end, _PAGE, *labels
            )
            yield [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in found]
            start, more = last.decode(), count == _PAGE

    def _acks(self, fields: Mapping[bytes, bytes]) -> Iterator[Ack]:
        meta = EntryMeta.from_json(orjson.loads(fields[b"m"]))
        labels = [label for label in meta.requested_acks if label in self._options.ack_labels]
        weak = [label for label in meta.requested_acks if label in self._options.weak_labels]
        if self._wanted.accepts(meta, fields.get(b"v")):
            for label in labels:
                yield Ack(meta.correlation_id, meta.thing_id, meta.origin, label, 200)
            return
        headers = orjson.loads(fields[b"h"])
        headers.pop("content-type", None)
        headers |= {"response-required": False, "ditto-weak-ack": True}
        reason = self._why_not(meta)
        for label in (*labels, *weak):
            yield Ack(meta.correlation_id, meta.thing_id, meta.origin, label, 200, reason, headers)

    def _why_not(self, meta: EntryMeta) -> str:
        """The text of a weak ack, as for any other subscriber (spec websocket-... 1.5)."""
        namespaces = self._options.namespaces
        covered = not namespaces or meta.thing_id.partition(":")[0] in namespaces
        return WEAK_FILTERED if meta.kind == EVENT and covered else WEAK_UNSUBSCRIBED

    def _send(self, acks: list[Ack]) -> None:
        if self._lease is not None:
            self._lease.check()
        asked = {ack.label for ack in acks}.difference(self._options.ack_labels)
        strange = {label for label in asked if not self._is_ours(label)}
        acks = [ack for ack in acks if ack.label not in strange]
        if acks:
            first, second = commands(acks, self._options.prefix, lambda: self._journal.shards)
            calls(self._options.url, [*first, *second])

    def _is_ours(self, label: str) -> bool:
        """Whether queries own the label, alone or as a group: nothing is answered for others."""
        url, prefix = self._options.url, self._options.prefix
        keys = owners_key(prefix), leases_key(prefix)
        owner: bytes = call(url, "HGET", keys[0], label) or b""
        if not owner.startswith(b"/"):
            return owner.startswith(_QUERY)
        groups = call(url, "EVAL", SCRIPT, 2, *keys, "groups", "", "")[2]
        members = dict(zip(groups[::3], groups[2::3], strict=True)).get(owner[1:], [])
        return bool(members) and all(member.startswith(_QUERY) for member in members)
