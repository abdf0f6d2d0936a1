"""Who is asking: HTTP basic authentication against the users of the settings.

A password is checked once per process and then known by a keyed hash of the header, because a
bcrypt check takes about as long as a thousand requests.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import bcrypt

from acks.errors import error
from app.settings import Credential

REMEMBERED = 10_000
CHECKS_AT_ONCE = 2
CHECKS_WAITING = 64
"""Password checks that may wait; more are refused, so that guessing cannot use up the machine."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated requester; ``subjects`` as policies name them, its own one first."""

    name: str
    subjects: tuple[str, ...]
    operator: bool


class Authenticator:
    """Checks ``Authorization`` headers.

    The subject of user ``a`` is ``nginx:a``, as Ditto's default deployment has it.
    """

    def __init__(self, credentials: Mapping[str, Credential]) -> None:
        self._credentials = dict(credentials)
        self._known: OrderedDict[bytes, Principal] = OrderedDict()
        self._key = os.urandom(32)
        self._slots = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0

    def known(self, authorization: bytes | None) -> Principal | None:
        """The requester, if this very header has been checked before."""
        if authorization is None:
            return None
        return self._known.get(blake2b(authorization, key=self._key, digest_size=16).digest())

    async def check(self, authorization: bytes | None) -> Principal:
        """The requester; raises ``gateway:authentication.failed`` or ``too.many.requests``."""
        known = self.known(authorization)
        if known is not None:
            return known
        name, password = _basic(authorization)
        credential = self._credentials.get(name)
        if not await self._matches(credential, password):
            raise error(
                "gateway:authentication.failed",
                description="The user name or the password is wrong.",
            )
        assert credential is not None
        assert authorization is not None
        principal = Principal(name, (f"nginx:{name}",), credential.operator)
        self._known[blake2b(authorization, key=self._key, digest_size=16).digest()] = principal
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return principal

    async def _matches(self, credential: Credential | None, password: bytes) -> bool:
        if credential is None:
            return False
        secret = credential.secret.get_secret_value().encode()
        if credential.kind == "plain":
            return hmac.compare_digest(secret, password)
        if self._waiting >= CHECKS_WAITING:
            raise error("too.many.requests")
        self._waiting += 1
        try:
            async with self._slots:
                # bcrypt takes 72 bytes at most and refuses more.
                return await asyncio.to_thread(bcrypt.checkpw, password[:72], secret)
        finally:
            self._waiting -= 1


def _basic(authorization: bytes | None) -> tuple[str, bytes]:
    if not authorization:
        raise error(
            "gateway:authentication.failed",
            description="Send the header 'Authorization' with HTTP basic authentication.",
        )
    scheme, _, value = authorization.partition(b" ")
    try:
        if scheme.lower() != b"basic":
            raise ValueError
        decoded = base64.b64decode(value.strip(), validate=True)
        name, colon, password = decoded.partition(b":")
        if not colon:
            raise ValueError
        return name.decode(), password
    except ValueError:
        raise error(
            "gateway:authentication.failed",
            description="The header 'Authorization' is not valid HTTP basic authentication.",
        ) from None
