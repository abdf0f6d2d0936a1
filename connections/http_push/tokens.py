"""Bearer tokens for HTTP push, by the client credentials grant (RFC 6749, section 4.4).

Credentials of type ``oauth-client-credentials``: ``tokenEndpoint``, ``clientId``,
``clientSecret``, ``requestedScopes``.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any

import httpx

from connections.driver import Cause, OpenError

_ANSWER_BYTES = 64 * 1024
_EARLY = 0.9  # share of its lifetime that a token is used: clocks and networks are not exact
_LIFETIME_S = 300.0  # of a token that does not say it


class Tokens:
    """The token of one connection: fetched when one is needed, by one request at a time."""

    def __init__(self, credentials: Mapping[str, Any], tls: ssl.SSLContext) -> None:
        try:
            self._url = httpx.URL(str(credentials["tokenEndpoint"]))
            self._form = {
                "grant_type": "client_credentials",
                "client_id": str(credentials["clientId"]),
                "client_secret": str(credentials["clientSecret"]),
            }
        except (KeyError, httpx.InvalidURL) as problem:
            text = "Credentials <oauth-client-credentials> need an URL as <tokenEndpoint>, "
            raise OpenError("misconfigured", text + "<clientId> and <clientSecret>.") from problem
        if scopes := credentials.get("requestedScopes"):
            self._form["scope"] = str(scopes)
        self._client = httpx.AsyncClient(
            verify=tls,
            trust_env=False,
            timeout=None,  # noqa: S113 - the caller of token() bounds the time
        )
        self._fetching = asyncio.Lock()
        self._token: str | None = None
        self._until = 0.0

    async def token(self) -> str:
        """A token that can be used now. The caller bounds the time; raises OpenError."""
        async with self._fetching:
            if self._token is None or time.monotonic() >= self._until:
                self._token = await self._fetch()
            return self._token

    def refuse(self, token: str) -> None:
        """Forget a token that was not accepted: the next request fetches another one."""
        if self._token == token:
            self._token = None

    async def close(self) -> None:
        """End the connections to the issuer."""
        await self._client.aclose()

    async def _fetch(self) -> str:
        began = time.monotonic()
        try:
            status, body = await self._ask()
        except httpx.HTTPError as problem:
            reason = str(problem) or type(problem).__name__
            raise OpenError(
                "temporary", f"The token endpoint did not answer: {reason}"
            ) from problem
        if status != 200:
            # RFC 6749, 5.2: 400 or 401 say that client, secret or scope are wrong.
            cause: Cause = "credentials" if status in (400, 401, 403) else "temporary"
            raise OpenError(cause, f"The token endpoint answered with status {status}.")
        try:
            answer = json.loads(body)
            token, lifetime = answer["access_token"], float(answer.get("expires_in", _LIFETIME_S))
        except (ValueError, KeyError, TypeError) as problem:
            raise OpenError("temporary", "The token endpoint's answer has no token.") from problem
        self._until = began + lifetime * _EARLY
        return str(token)

    async def _ask(self) -> tuple[int, bytes]:
        """Status and body of the endpoint's answer, which is bounded."""
        accepts = {"accept": "application/json", "accept-encoding": "identity"}
        async with self._client.stream("POST", self._url, data=self._form, headers=accepts) as got:
            body = b""
            async for part in got.aiter_raw():
                body += part
                if len(body) > _ANSWER_BYTES:
                    break
        return got.status_code, body
