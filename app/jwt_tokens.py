"""JSON Web Tokens: who made one, whether it holds, and which subjects it stands for.

Source: spec websocket-... 5.1; RFC 7519; RFC 8725. Signatures and times are checked by PyJWT.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jwt

from acks.document import MAX_ID_LENGTH
from acks.errors import GatewayError, error
from app.jwt_keys import Found, IssuerKeys, KeysUnavailable
from app.jwt_source import source
from app.settings_access import JwtIssuer
from connections.placeholders.templates import Template, parse_template

CLOCK_SKEW = 10.0
"""By how much an issuer's clock may differ from ours, s (spec 5.1)."""
MAX_TOKEN_CHARS = 16_384
MAX_SUBJECTS = 100
"""Most subjects that a requester may have (spec websocket-... 1.1)."""
_UNNAMEABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_FAR = 2**53
_SHOWN = 200


class Verified(NamedTuple):
    """What a token says of its bearer.

    ``expires`` is its end, ``until`` how long it counts without another look; both epoch s.
    """

    subjects: tuple[str, ...]
    expires: float
    until: float


def subjects_of(key: str, claims: Mapping[str, Any], templates: Sequence[Template]) -> list[str]:
    """The subjects of a token, each once: ``<key>:<text>`` for every text of every template.

    A template with something unresolved stands for nothing (spec 5.1), and neither does what no
    policy can name.
    """
    subjects = dict.fromkeys(f"{key}:{text}" for text in _resolved(claims, templates))
    return [subject for subject in subjects if _is_subject(subject)]


def _resolved(claims: Mapping[str, Any], templates: Sequence[Template]) -> list[str]:
    def lookup(_prefix: str, name: str) -> list[str]:
        return _texts(_claim(claims, name))

    return [text for template in templates for text in template.resolve(lookup) if text]


def _is_subject(text: str) -> bool:
    """JSON in a token may hold half a surrogate pair, which could not be written anywhere."""
    return len(text) <= MAX_ID_LENGTH and _UNNAMEABLE.search(text) is None


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """A claim by its name, or by a path such as ``realm_access/roles``."""
    if name in claims:
        return claims[name]
    value: object = claims
    for step in name.split("/"):
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def _texts(value: object) -> list[str]:
    """A claim's value as texts: those of an array one by one, none of an object."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value if not isinstance(item, list) for text in _texts(item)]
    if isinstance(value, bool | int | float):
        return [json.dumps(value)]
    return []


def not_verified(description: str) -> GatewayError:
    """``gateway:authentication.failed`` for a token (spec 5.1)."""
    return error(
        "gateway:authentication.failed",
        message="The JWT could not be verified.",
        description=description,
    )


class _Issuer:
    """An issuer of the settings with its keys; ``key`` is the first part of its subjects."""

    def __init__(self, key: str, configured: JwtIssuer, *, insecure: bool) -> None:
        self.key = key
        self.url = configured.issuer
        self.algorithms = frozenset(configured.algorithms)
        self.audiences = configured.checked_audiences()
        self.templates = _parsed(configured.subjects)
        self.conditions = _parsed(configured.conditions)
        self.keys = IssuerKeys(key, source(configured.issuer, configured.jwks, insecure=insecure))


def _parsed(texts: Sequence[str]) -> tuple[Template, ...]:
    return tuple(parse_template(text, frozenset({"jwt"})) for text in texts)


class Tokens:
    """Verifies tokens of the issuers of the settings, given by the prefix of their subjects.

    ``insecure`` allows to fetch keys by http:// (development).
    """

    def __init__(self, issuers: Mapping[str, JwtIssuer], *, insecure: bool) -> None:
        made = [_Issuer(key, one, insecure=insecure) for key, one in issuers.items()]
        self._issuers = {issuer.url: issuer for issuer in made}

    async def verify(self, token: str) -> Verified:
        """What the token says of its bearer.

        Raises ``gateway:authentication.failed``, ``gateway:jwt.issuer.notsupported``,
        ``gateway:jwt.condition.failed``, ``headers.too.large`` for too many subjects,
        ``too.many.requests``, and ``gateway:service.unavailable`` if the keys cannot be had.
        """
        header, claims = _unverified(token)
        issuer = self._issuer(claims.get("iss"))
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
            raise not_verified("It is signed by an algorithm that is not allowed.")
        found = await self._key(issuer, kid, algorithm)
        claims = _verified(token, found.key, algorithm, issuer)
        for condition in issuer.conditions:
            if not _resolved(claims, (condition,)):
                raise error("gateway:jwt.condition.failed")
        subjects = subjects_of(issuer.key, claims, issuer.templates)
        if not subjects:
            raise not_verified("It names no subject.")
        if len(subjects) > MAX_SUBJECTS:
            raise error("headers.too.large", description=f"At most {MAX_SUBJECTS} subjects.")
        expires = float(min(int(claims["exp"]), _FAR))
        return Verified(tuple(subjects), expires, min(expires, time.time() + found.counts))

    async def close(self) -> None:
        """End the fetches that are under way."""
        await asyncio.gather(*(issuer.keys.close() for issuer in self._issuers.values()))

    def _issuer(self, url: object) -> _Issuer:
        issuer = self._issuers.get(url) if isinstance(url, str) else None
        if issuer is None:
            raise error("gateway:jwt.issuer.notsupported", issuer=str(url)[:_SHOWN])
        return issuer

    async def _key(self, issuer: _Issuer, kid: str | None, algorithm: str) -> Found:
        try:
            found = await issuer.keys.find(kid, algorithm)
        except KeysUnavailable:
            raise error(
                "gateway:service.unavailable",
                reason=f"The keys of the JWT issuer '{issuer.url}' cannot be fetched.",
            ) from None
        if found is None:
            raise not_verified("Its issuer has no such key.")
        return found


def _unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims, to find the key with. Nothing of it is to be believed."""
    if len(token) > MAX_TOKEN_CHARS:
        raise not_verified(f"It is longer than {MAX_TOKEN_CHARS} characters.")
    try:
        read = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, UnicodeError):
        raise not_verified("It is not a JWT.") from None
    return read["header"], read["payload"]


def _verified(token: str, key: jwt.PyJWK, algorithm: str, issuer: _Issuer) -> dict[str, Any]:
    try:
        return jwt.decode(
            token,
            key,
            algorithms=[algorithm],  # one of the issuer's, and what the key is bound to
            audience=issuer.audiences,
            issuer=issuer.url,
            leeway=CLOCK_SKEW,
            options={
                "require": ["exp"],
                "verify_aud": issuer.audiences is not None,
                # What they look like is the templates' business.
                "verify_iat": False,
                "verify_sub": False,
                "verify_jti": False,
                "enforce_minimum_key_length": True,
            },
        )
    except jwt.ExpiredSignatureError:
        raise not_verified("It has expired.") from None
    except jwt.ImmatureSignatureError:
        raise not_verified("It is not valid yet.") from None
    except jwt.InvalidAudienceError:
        raise not_verified("It was made for somebody else.") from None
    except jwt.MissingRequiredClaimError as problem:
        raise not_verified(f"It lacks the claim '{problem.claim}'.") from None
    except jwt.InvalidSignatureError:
        raise not_verified("Its signature does not hold.") from None
    except (jwt.PyJWTError, UnicodeError):
        raise not_verified("It is malformed.") from None
