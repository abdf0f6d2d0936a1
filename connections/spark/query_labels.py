"""The labels of a query whose acks are sent by a sink: owned in the name of the query itself.

Spark gives a sink no process that lives as long as the query. So the holder is named after the
query, and any process that works for the query may claim, renew and free in that name.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from acks.journal import leases_key, owners_key
from connections.spark.labels import SCRIPT, LabelTaken, Owned, claim
from connections.spark.store import call, calls

TTL: Final = 6.0  # s that labels stay owned without a word of the query
_TAKEOVER: Final = 9.0  # s: more than TTL, so that labels of a query that crashed become free
_PAUSE: Final = 0.2  # s between two tries to claim


class QueryLabels(NamedTuple):
    """``labels`` for the run ``run`` of the query ``query``; ``group`` may be empty.

    The id of a query lies in its checkpoint. A restarted query is the same holder, so it takes over
    at once what its run before has left.
    """

    url: str
    prefix: str
    labels: tuple[str, ...]
    group: str
    query: str
    run: str

    @property
    def holder(self) -> str:
        """The name of the owner in the store."""
        return f"spark-{self.query}"

    def hold(self) -> None:
        """Claim the labels or renew the claim, for :data:`TTL`.

        Raises LabelTaken if somebody else owns one, GatewayError if the group's name is none, and
        redis.RedisError.
        """
        mine: list[bytes] = call(self.url, *self._script("mine"))
        old = [run.decode() for run in mine if run.decode() != self.run]
        calls(self.url, [self._script("release", run) for run in old])
        owned = Owned(self.holder, self.run, self.labels, self.group, int(TTL * 1000))
        claim(self.url, self._keys(), owned)

    def hold_soon(self) -> None:
        """The same, but wait some seconds for the lease of a query that has just crashed."""
        deadline = time.monotonic() + _TAKEOVER
        while True:
            try:
                return self.hold()
            except LabelTaken:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)

    def free(self) -> None:
        """Free the labels, unless a later run has taken them over. Raises redis.RedisError."""
        call(self.url, *self._script("release", self.run))

    def _keys(self) -> tuple[str, str]:
        return owners_key(self.prefix), leases_key(self.prefix)

    def _script(self, operation: str, *arguments: str) -> tuple[str | int, ...]:
        return ("EVAL", SCRIPT, 2, *self._keys(), operation, self.holder, *arguments)
