"""The end of a WebSocket session whose token ends, and its refresh by ``JWT-TOKEN``.

Source: spec websocket-... 1.7. The client sees a normal close and no error frame.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from acks.errors import GatewayError
from app.api.auth import Authenticator, Principal
from app.session import Session

log = structlog.get_logger(__name__)

NEVER = 100 * 86_400.0
"""A token that ends later than that from now never ends its session, s."""
LONGEST_WAIT = 3600.0
"""The clock of the wall is looked at again after that, s: it may be set, timers do not notice."""


class Expiry:
    """Closes ``session`` when the token of ``principal`` ends; one object per session."""

    def __init__(
        self, session: Session, principal: Principal, authenticator: Authenticator
    ) -> None:
        self._session = session
        self._subjects = principal.subjects
        self._expires = principal.expires
        self._authenticator = authenticator
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """Begin to wait for the end of the token, if it has one within 100 days."""
        self.cancel()
        if self._expires is None or self._session.closing is not None:
            return
        left = self._expires - time.time()
        if left <= 0:
            self._end("expired")
        elif left <= NEVER:
            delay = min(left, LONGEST_WAIT)
            self._timer = asyncio.get_running_loop().call_later(delay, self.arm)

    async def refresh(self, token: str) -> None:
        """Go on with a new token.

        It must be valid and stand for the very same subjects, else the session ends. While its
        issuer cannot be asked the session keeps the end that it has.
        """
        try:
            principal = await self._authenticator.check_token(token)
        except GatewayError as problem:
            if problem.kind.retryable:
                log.warning("ws.token_not_checked", session=self._session.id, error=problem.code)
            else:
                self._end("refused")
            return
        if principal.subjects != self._subjects:
            self._end("other_subjects")
            return
        self._expires = principal.expires
        self.arm()

    def cancel(self) -> None:
        """Stop waiting; to be called at the end of the session."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, why: str) -> None:
        self.cancel()
        log.info("ws.token_ended", session=self._session.id, why=why)
        self._session.close(1000, "")
