"""Where the keys of a token issuer come from: a file, a URL, or OpenID Connect discovery."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Protocol

import httpx
import orjson

FETCH_DEADLINE = 5.0
"""Longest time for one fetch of an issuer's keys with everything that belongs to it, s."""
MAX_BYTES = 256 * 1024
"""Largest document that is read of an issuer."""
DISCOVERY = "/.well-known/openid-configuration"


class SourceError(Exception):
    """An issuer's keys cannot be had now; the text says why, for the log."""


class Source(Protocol):
    """Reads a JSON Web Key Set."""

    async def read(self) -> bytes:
        """The document; raises SourceError. The caller sets it a deadline."""


def source(issuer: str, jwks: str | None, *, insecure: bool) -> Source:
    """The source of an issuer's keys: ``jwks`` is a URL or a file, None means discovery.

    ``insecure`` allows http:// (development).
    """
    if jwks is None:
        return _Discovery(issuer, _Web(insecure=insecure))
    if jwks.startswith(("http://", "https://")):
        return _Url(jwks, _Web(insecure=insecure))
    return _File(Path(jwks))


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> bytes:
        try:
            return await asyncio.to_thread(self._read)
        except OSError as problem:
            raise SourceError(f"{self._path}: {problem.strerror or problem}") from None

    def _read(self) -> bytes:
        with self._path.open("rb") as stream:
            document = stream.read(MAX_BYTES + 1)
        if len(document) > MAX_BYTES:
            raise SourceError(f"{self._path}: more than {MAX_BYTES} bytes")
        return document


class _Web:
    """Small documents by HTTPS, without redirects."""

    def __init__(self, *, insecure: bool) -> None:
        self._insecure = insecure
        self._trust: ssl.SSLContext | None = None

    async def get(self, url: str) -> bytes:
        if not url.startswith("https://") and not (self._insecure and url.startswith("http://")):
            raise SourceError(f"{url}: not an https:// URL")
        if self._trust is None:
            # Reading the certificates takes tens of milliseconds.
            self._trust = await asyncio.to_thread(httpx.create_ssl_context)
        try:
            return await self._get(url, self._trust)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as problem:
            text = str(problem) or type(problem).__name__
            raise SourceError(f"{url}: {text}") from None

    async def _get(self, url: str, trust: ssl.SSLContext) -> bytes:
        # Not compressed: a small answer could become a huge one.
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        async with (
            httpx.AsyncClient(verify=trust, timeout=FETCH_DEADLINE) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code != 200:
                raise SourceError(f"{url}: answered {answer.status_code}")
            if "content-encoding" in answer.headers:
                raise SourceError(f"{url}: a compressed answer that nobody asked for")
            document = bytearray()
            async for piece in answer.aiter_raw():
                document += piece
                if len(document) > MAX_BYTES:
                    raise SourceError(f"{url}: more than {MAX_BYTES} bytes")
            return bytes(document)


class _Url:
    def __init__(self, url: str, web: _Web) -> None:
        self._url = url
        self._web = web

    async def read(self) -> bytes:
        return await self._web.get(self._url)


class _Discovery:
    """OpenID Connect Discovery 1.0: the issuer's own document names the URL of its keys."""

    def __init__(self, issuer: str, web: _Web) -> None:
        self._issuer = issuer
        self._url = issuer.rstrip("/") + DISCOVERY
        self._web = web

    async def read(self) -> bytes:
        try:
            document = orjson.loads(await self._web.get(self._url))
        except orjson.JSONDecodeError as problem:
            raise SourceError(f"{self._url}: not JSON: {problem}") from None
        url = document.get("jwks_uri") if isinstance(document, dict) else None
        if not isinstance(url, str):
            raise SourceError(f"{self._url}: there is no jwks_uri")
        # Discovery 1.0, 4.3: else another issuer's document could stand in for this one.
        if document.get("issuer") != self._issuer:
            raise SourceError(f"{self._url}: its issuer is not {self._issuer}")
        return await self._web.get(url)
