"""Who is asking: a password, a JSON Web Token, or what a trusted proxy says.

What was checked is then known by a keyed hash of the header for as long as it counts: a bcrypt
check takes about as long as a thousand requests, a signature as long as one.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import bcrypt

from acks.errors import GatewayError, error
from app.api.presented import Evidence, Presented
from app.api.proxies import Proxies
from app.credentials import Credential
from app.settings_access import BASIC_ISSUER

if TYPE_CHECKING:
    from app.jwt_tokens import Tokens

REMEMBERED = 10_000
"""Headers that are known, of each way."""
CHECKS_AT_ONCE = 2
CHECKS_WAITING = 64
"""Password checks that may wait; more are refused, so that guessing cannot use up the machine."""
_BASIC = 'Basic realm="ackgate", charset="UTF-8"'
_BEARER = 'Bearer realm="ackgate"'


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated requester; ``subjects`` as policies name them, its own one first.

    A session of it ends when it ``expires``; ``until`` then it is known without another check.
    Both are epoch s, None means for ever.
    """

    name: str
    subjects: tuple[str, ...]
    operator: bool
    expires: float | None = None
    until: float | None = None

    def is_known(self) -> bool:
        """Whether it still counts without another check."""
        return self.until is None or time.time() < self.until


class Authenticator:
    """Checks what requests show of their sender.

    The subject of user ``a`` is ``nginx:a``, as Ditto's default deployment has it. Without
    ``tokens`` no JWT is taken, without ``proxies`` nobody may speak for others. A requester with
    one of the subjects ``operators`` is an operator.
    """

    def __init__(
        self,
        credentials: Mapping[str, Credential],
        *,
        tokens: Tokens | None = None,
        proxies: Proxies | None = None,
        operators: Iterable[str] = (),
    ) -> None:
        self._credentials = dict(credentials)
        self._tokens = tokens
        self._proxies = proxies
        self._operators = frozenset(operators)
        # Apart: who has one token can write it in many ways, and so push the others out.
        self._by_password: OrderedDict[bytes, Principal] = OrderedDict()
        self._by_token: OrderedDict[bytes, Principal] = OrderedDict()
        self._key = os.urandom(32)
        self._slots = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0
        ways = [_BASIC] if credentials or tokens is None else []
        self._challenge = ", ".join([*ways, _BEARER] if tokens is not None else ways)

    def known(self, shown: Evidence) -> Principal | None:
        """The requester, if this very header has been checked before and still counts.

        One whom a trusted proxy names needs no check.
        """
        if type(shown) is bytes:
            digest = self._digest(shown)
            principal = self._by_password.get(digest) or self._by_token.get(digest)
            return principal if principal is not None and principal.is_known() else None
        if not isinstance(shown, Presented) or shown.access_token is not None:
            return None
        try:
            return self._stated(shown) or self.known(shown.authorization)
        except GatewayError:
            return None

    async def check(self, shown: Evidence) -> Principal:
        """The requester.

        Raises ``gateway:authentication.failed`` and what else tokens raise (:meth:`Tokens.verify`),
        ``too.many.requests``, ``gateway:duplicate.header.field``.
        """
        known = self.known(shown)
        if known is not None:
            return known
        try:
            if isinstance(shown, Presented):
                return await self._presented(shown)
            return await self._authorized(shown)
        except GatewayError as problem:
            if problem.status == 401:
                problem.headers.setdefault("www-authenticate", self._challenge)
            raise

    async def check_token(self, token: str) -> Principal:
        """The bearer of a token that came another way; raises as :meth:`check`."""
        if self._tokens is None:
            raise _no_way()
        return await self._bearer(b"Bearer " + token.encode("utf-8", "replace"), token)

    async def close(self) -> None:
        """End what is under way."""
        if self._tokens is not None:
            await self._tokens.close()

    # --- ways

    async def _presented(self, shown: Presented) -> Principal:
        stated = self._stated(shown)
        if stated is not None:
            return stated
        if shown.access_token is None or self._tokens is None:
            return await self._authorized(shown.authorization)
        if _scheme(shown.authorization) == b"bearer":
            raise error("gateway:authentication.failed", message="Multiple JWTs provided.")
        # Such a session has no end of its own (spec websocket-... 1.7).
        return replace(await self.check_token(shown.access_token), expires=None)

    def _stated(self, shown: Presented) -> Principal | None:
        """Whom a trusted proxy names, if it names somebody; raises :meth:`Proxies.subjects`'s."""
        subjects = None if self._proxies is None else self._proxies.subjects(shown)
        return None if subjects is None else self._principal(subjects)

    async def _authorized(self, authorization: bytes | None) -> Principal:
        scheme = _scheme(authorization)
        if authorization is not None and scheme == b"basic":
            return await self._basic(authorization)
        if authorization is not None and scheme == b"bearer" and self._tokens is not None:
            token = authorization[len(scheme) :].strip().decode("latin-1")
            return await self._bearer(authorization, token)
        raise _no_way()

    async def _basic(self, authorization: bytes) -> Principal:
        name, password = _name_and_password(authorization)
        credential = self._credentials.get(name)
        if credential is None or not await self._matches(credential, password):
            raise error(
                "gateway:authentication.failed",
                description="The user name or the password is wrong.",
            )
        principal = self._principal((f"{BASIC_ISSUER}:{name}",), name, credential.operator)
        return self._remember(self._by_password, authorization, principal)

    async def _bearer(self, header: bytes, token: str) -> Principal:
        known = self.known(header)
        if known is not None:
            return known
        assert self._tokens is not None
        try:
            verified = await self._tokens.verify(token)
        except GatewayError as problem:
            if problem.status == 401:
                # RFC 6750, 3.1
                told = self._challenge.replace(_BEARER, f'{_BEARER}, error="invalid_token"')
                problem.headers["www-authenticate"] = told
            raise
        principal = self._principal(verified.subjects)
        principal = replace(principal, expires=verified.expires, until=verified.until)
        return self._remember(self._by_token, header, principal)

    async def _matches(self, credential: Credential, password: bytes) -> bool:
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

    # --- what is known

    def _principal(
        self, subjects: tuple[str, ...], name: str = "", operator: bool = False
    ) -> Principal:
        operator = operator or not self._operators.isdisjoint(subjects)
        return Principal(name or subjects[0], subjects, operator)

    def _remember(
        self, known: OrderedDict[bytes, Principal], header: bytes, principal: Principal
    ) -> Principal:
        known[self._digest(header)] = principal
        if len(known) > REMEMBERED:
            known.popitem(last=False)
        return principal

    def _digest(self, header: bytes) -> bytes:
        return blake2b(header, key=self._key, digest_size=16).digest()


def _scheme(authorization: bytes | None) -> bytes:
    return (authorization or b"").partition(b" ")[0].lower()


def _no_way() -> GatewayError:
    return error(
        "gateway:authentication.failed",
        message="No applicable authentication provider was found!",
        description="Send the header 'Authorization' in a way that 'WWW-Authenticate' names.",
    )


def _name_and_password(authorization: bytes) -> tuple[str, bytes]:
    try:
        decoded = base64.b64decode(authorization.partition(b" ")[2].strip(), validate=True)
        name, colon, password = decoded.partition(b":")
        if not colon:
            raise ValueError
        return name.decode(), password
    except ValueError:
        raise error(
            "gateway:authentication.failed",
            description="The header 'Authorization' is not valid HTTP basic authentication.",
        ) from None
