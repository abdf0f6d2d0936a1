"""The label of a running query: claimed for it or its group, kept by a lease, released at the end.

The rules are acks/declared.lua's; this is a holder like any gateway process.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple

import redis

from acks.declared import check_group
from acks.journal import leases_key, owners_key
from connections.spark.store import call

log = logging.getLogger(__name__)

SCRIPT: Final = files("acks").joinpath("declared.lua").read_text()
_SESSION: Final = "query"


class LabelTaken(RuntimeError):
    """Somebody else owns it: ``label``, and ``owner``, ``<holder>/<session>`` or a group."""

    def __init__(self, label: str, owner: str) -> None:
        super().__init__(
            f"the label {label!r} is taken by {owner}; a label has one owner at a time, "
            "stop that one or choose another label"
        )
        self.label = label
        self.owner = owner


class LabelLost(RuntimeError):
    """The labels are not ours at this moment; no acks may be sent for them."""


class Owned(NamedTuple):
    """What is claimed for whom; ``group`` may be empty, ``ttl_ms`` is how long it lasts."""

    holder: str
    session: str
    labels: tuple[str, ...]
    group: str
    ttl_ms: int


def claim(url: str, keys: tuple[str, str], owned: Owned) -> None:
    """Claim labels, or claim them again. ``keys`` are those of owners and of leases.

    Raises :class:`LabelTaken` if one is owned by somebody else (then none is claimed), and
    redis.RedisError.
    """
    holder, session, labels, group, ttl_ms = owned
    how = ("join", holder, ttl_ms, session, group) if group else ("claim", holder, ttl_ms, session)
    answer = call(url, "EVAL", SCRIPT, 2, *keys, *how, *labels)
    if not answer:
        return
    owner: bytes | None = call(url, "HGET", keys[0], answer)
    name = owner.decode() if owner else "another session"
    raise LabelTaken(answer.decode(), f"the group {name[1:]}" if name.startswith("/") else name)


class LabelLease:
    """Ownership of ``labels`` from construction to :meth:`close`, renewed by a thread of its own.

    ``ttl`` is the time in seconds after which a dead holder's labels are free. With a ``group`` (3
    to 165 of A-Z a-z 0-9 - _ :) its other members may own the same labels too; no signals are kept
    from a query for the sake of another member, since a query reads the whole journal.
    Raises :class:`LabelTaken` if one is owned by somebody else (then none is claimed), GatewayError
    if the group's name is none, and redis.RedisError if the store does not answer.
    """

    def __init__(
        self, url: str, prefix: str, labels: Sequence[str], *, ttl: float = 6.0, group: str = ""
    ) -> None:
        self.holder = f"spark-{secrets.token_hex(8)}"
        self._url = url
        self._keys = owners_key(prefix), leases_key(prefix)
        self._labels = tuple(labels)
        self._group = check_group(group, self._labels) if group else ""
        self._ttl = ttl
        self._lock = threading.Lock()  # one talk with the store about this lease at a time
        self._ended = threading.Event()
        self._taken: LabelTaken | None = None
        self._held_until = 0.0
        self._claim()
        self._thread = threading.Thread(
            target=self._keep, name=f"ackgate-lease-{self.holder}", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Return if the labels are ours at this moment; costs nothing while renewals succeed.

        Raises :class:`LabelTaken` if somebody else owns one now, :class:`LabelLost` if the lease
        ran out and the store does not answer, or was closed.
        """
        if self._ended.is_set():
            raise LabelLost(f"the lease of {', '.join(self._labels)} was released")
        if self._taken is None and time.monotonic() >= self._held_until:
            try:
                self._renew()
            except redis.RedisError as problem:
                raise LabelLost(
                    f"the lease of {', '.join(self._labels)} ran out and the store does not answer"
                ) from problem
        if self._taken is not None:
            raise self._taken

    def close(self) -> None:
        """Stop renewing and free the labels; does nothing the second time.

        If the store does not answer, the lease runs out by itself.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        try:
            self._call("drop")
        except redis.RedisError as problem:
            log.warning("labels not released, they expire in %s s: %s", self._ttl, problem)

    def _keep(self) -> None:
        while not self._ended.wait(self._ttl / 3):
            try:
                self._renew()
            except redis.RedisError as problem:
                log.warning("lease of %s not renewed: %s", ", ".join(self._labels), problem)
            if self._taken is not None:
                log.error("%s", self._taken)
                return

    def _renew(self) -> None:
        with self._lock:
            # Counted from before the call: the store may have done it at any moment of it.
            asked = time.monotonic()
            if self._call("renew", self._milliseconds()) == 1:
                self._held_until = asked + self._ttl
                return
        try:
            self._claim()
        except LabelTaken as taken:
            self._taken = taken

    def _claim(self) -> None:
        with self._lock:
            asked = time.monotonic()
            claim(self._url, self._keys, self._owned())
            self._held_until = asked + self._ttl

    def _owned(self) -> Owned:
        return Owned(self.holder, _SESSION, self._labels, self._group, self._milliseconds())

    def _milliseconds(self) -> int:
        return int(self._ttl * 1000)

    def _call(self, operation: str, *arguments: str | int) -> Any:
        return call(self._url, "EVAL", SCRIPT, 2, *self._keys, operation, self.holder, *arguments)
