"""The public keys of a token issuer: read from a JSON Web Key Set, kept for an hour.

Source: spec websocket-... 5.1; RFC 7517; RFC 8725.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jwt
import orjson
import structlog

from acks.errors import error
from app.jwt_source import FETCH_DEADLINE, Source, SourceError

log = structlog.get_logger(__name__)

KEEP = 3600.0
"""How long keys count, s (spec 5.1: 60 minutes)."""
REFRESH = 2700.0
"""Age at which they are fetched anew beside the requests, so that none waits for that, s."""
UNKNOWN_EVERY = 30.0
"""Least time between two fetches because of keys that nobody knows: anybody can name one, s."""
RETRY = 1.0
"""Least time between two fetches when the first has failed, s."""
MAX_WAITING = 1_000
"""Requests that may wait for one fetch."""
MAX_KEYS = 100
_RSA_BITS = range(2048, 8192 + 1)
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES: dict[object, frozenset[str]] = {
    "P-256": frozenset({"ES256"}),
    "P-384": frozenset({"ES384"}),
    "P-521": frozenset({"ES512"}),
}
_MEMBERS = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}
"""What makes a public key. Nothing else is taken: a key set may hold private parts by mistake."""


class KeysUnavailable(Exception):
    """The keys of an issuer cannot be had now."""


class PublicKey:
    """One key of a set, for the algorithms that it is made for."""

    def __init__(self, jwk: dict[str, Any]) -> None:
        """Raises ValueError if it is no public key for signatures that we take."""
        kind, use = jwk.get("kty"), jwk.get("use")
        operations = jwk.get("key_ops", ["verify"])
        if kind not in _MEMBERS or use not in (None, "sig") or "verify" not in operations:
            raise ValueError("not a key for signatures")
        self.kid = jwk.get("kid")
        self._members = {name: jwk.get(name) for name in _MEMBERS[kind]}
        fits = _RSA if kind == "RSA" else _CURVES.get(jwk.get("crv"), frozenset())
        named = jwk.get("alg")
        self.algorithms = fits if named is None else fits & {named}
        if not self.algorithms:
            raise ValueError("no algorithm that we take")
        self._made: dict[str, jwt.PyJWK] = {}
        made = self.verifier(min(self.algorithms))
        if kind == "RSA" and made.key.key_size not in _RSA_BITS:
            raise ValueError("too short or too long")

    def verifier(self, algorithm: str) -> jwt.PyJWK:
        """The key bound to one of its ``algorithms``."""
        made = self._made.get(algorithm)
        if made is None:
            try:
                made = jwt.PyJWK(self._members, algorithm)
            except jwt.PyJWTError as problem:
                raise ValueError(str(problem)) from None
            self._made[algorithm] = made
        return made


def read_keys(document: bytes) -> tuple[PublicKey, ...]:
    """The usable keys of a JSON Web Key Set; others are left out (RFC 7517, 5).

    Raises ValueError if it is no such document, or none of its keys is usable.
    """
    parsed = orjson.loads(document)
    entries = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JSON Web Key Set")
    keys = []
    for entry in entries[:MAX_KEYS]:
        try:
            keys.append(PublicKey(entry))
        except (ValueError, TypeError, AttributeError):
            continue
    if not keys:
        raise ValueError("no key in it can verify a signature that we take")
    return tuple(keys)


class Found(NamedTuple):
    """A key, and for how many seconds more it counts."""

    key: jwt.PyJWK
    counts: float


class IssuerKeys:
    """The keys of the issuer ``name``, fetched when they are needed and kept.

    One fetch is under way at most. ``clock`` gives seconds that only grow.
    """

    def __init__(
        self, name: str, source: Source, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._source = source
        self._clock = clock
        self._keys: tuple[PublicKey, ...] = ()
        self._fetched = float("-inf")
        self._failed = float("-inf")
        self._looked = float("-inf")
        self._fetches = 0
        self._problem: str | None = None
        self._fetch: asyncio.Task[None] | None = None
        self._waiting = 0

    async def find(self, kid: str | None, algorithm: str) -> Found | None:
        """The key that a token names; None if the issuer has none such for ``algorithm``.

        An unknown ``kid`` is looked for at the issuer, at most every :data:`UNKNOWN_EVERY`.
        Raises KeysUnavailable, ``too.many.requests``.
        """
        before = self._fetches
        age = self._clock() - self._fetched
        if age >= KEEP:
            await self._renew()
        elif age >= REFRESH and self._may_fetch():
            self._begin()
        key = self._select(kid, algorithm)
        if key is None and kid is not None and self._may_look(before):
            await self._renew()
            self._looked = self._clock()
            key = self._select(kid, algorithm)
        if key is None:
            return None
        return Found(key.verifier(algorithm), KEEP - (self._clock() - self._fetched))

    async def close(self) -> None:
        """End a fetch that is under way."""
        if self._fetch is not None:
            self._fetch.cancel()
            await asyncio.gather(self._fetch, return_exceptions=True)
            self._fetch = None  # a task that had not begun yet leaves it

    def _select(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """A token that names no key fits if there is only one for its algorithm."""
        fitting = [
            key
            for key in self._keys
            if algorithm in key.algorithms and (kid is None or key.kid == kid)
        ]
        if not fitting or (kid is None and len(fitting) > 1):
            return None
        return fitting[0]

    def _may_look(self, before: int) -> bool:
        """Whether to ask the issuer for an unknown key: not if that has just been done."""
        return self._fetches == before and self._clock() - self._looked >= UNKNOWN_EVERY

    def _may_fetch(self) -> bool:
        return self._fetch is None and self._clock() - self._failed >= RETRY

    async def _renew(self) -> None:
        if self._fetch is None:
            if not self._may_fetch():
                raise KeysUnavailable(self._problem)
            self._begin()
        if self._waiting >= MAX_WAITING:
            raise error("too.many.requests")
        self._waiting += 1
        try:
            assert self._fetch is not None
            # One who goes away does not end the fetch for the others.
            await asyncio.shield(self._fetch)
        finally:
            self._waiting -= 1
        if self._problem is not None:
            raise KeysUnavailable(self._problem)

    def _begin(self) -> None:
        self._fetch = asyncio.create_task(self._run(), name=f"jwt-keys-{self._name}")

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(FETCH_DEADLINE):
                keys = read_keys(await self._source.read())
        except (SourceError, ValueError, TimeoutError) as problem:
            text = str(problem) or f"no answer within {FETCH_DEADLINE:g} s"
            self._problem, self._failed = text, self._clock()
            log.warning("jwt.keys_unavailable", issuer=self._name, reason=self._problem)
        else:
            self._keys, self._fetched, self._problem = keys, self._clock(), None
            self._fetches += 1
            log.info("jwt.keys_fetched", issuer=self._name, keys=len(keys))
        finally:
            self._fetch = None
