"""What every endpoint below ``/api/2`` does first, and the refusals they share."""

from __future__ import annotations

from acks.errors import GatewayError, error
from app.api.auth import Authenticator, Principal
from app.api.http import Receive, RequestHead, Scope, query_items, raw_path, read_body


class Reception:
    """Reads heads and bodies within their bounds, and knows who sends them.

    ``max_body`` is in bytes, ``max_headers`` in characters; the latter bounds paths, too.
    """

    def __init__(self, authenticator: Authenticator, *, max_body: int, max_headers: int) -> None:
        self.max_body = max_body
        self._authenticator = authenticator
        self._max_headers = max_headers

    async def open(self, scope: Scope) -> tuple[RequestHead, Principal]:
        """Head and requester of a request.

        Raises what :class:`RequestHead` and :meth:`Authenticator.check` raise.
        """
        head = RequestHead(scope, self._max_headers)
        scope["correlation_id"] = head.correlation_id
        return head, await self._authenticator.check(head.authorization)

    def known(self, scope: Scope) -> tuple[RequestHead, Principal] | None:
        """The same without waiting; None if its credentials have not been checked before."""
        try:
            head = RequestHead(scope, self._max_headers)
        except GatewayError:
            return None
        principal = self._authenticator.known(head.authorization)
        return None if principal is None else (head, principal)

    def path(self, scope: Scope) -> str:
        """The path as it was sent; raises ``headers.too.large``."""
        path = raw_path(scope)
        if len(path) > self._max_headers:
            raise error("headers.too.large", limit=self._max_headers)
        return path

    async def body(self, receive: Receive) -> bytes:
        """The whole body; raises ``request.toolarge``, ConnectionResetError."""
        return await read_body(receive, self.max_body)


def allow(method: str, path: str, *allowed: str) -> None:
    """Raises ``gateway:method.notallowed`` unless ``method`` is one of ``allowed``."""
    if method not in allowed:
        names = ", ".join(allowed)
        raise error("gateway:method.notallowed", method=method, path=path, allowed=names)


def check_media_type(content_type: str | None, allowed: tuple[str, ...]) -> None:
    """Raises ``mediatype.unsupported`` for another type than ``allowed``, of which "" is none."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type not in allowed:
        raise error("mediatype.unsupported", given=media_type, allowed=allowed[0])


def parameters(scope: Scope, name: str) -> list[str]:
    """The values of a query parameter, in their order."""
    query = scope["query_string"]
    if name.encode() not in query and b"%" not in query:
        return []
    return [value for given, value in query_items(scope) if given == name]
