"""Who owns which declared label: ``GET /api/2/acks/labels``, for operators."""

from __future__ import annotations

from typing import Any

from acks.errors import error
from acks.labels import check_labels
from app.api.auth import Principal
from app.api.http import RequestHead, Scope, Send, send_answer
from app.api.reception import allow, parameters
from app.session import Session
from app.sessions import Sessions
from app.store.label_list import LabelList, Owned
from app.store.redis_client import StoreError, StoreUnavailable

MOST = 20_000
"""Most owners in one answer; it says if there are more."""


class Labels:
    """The resource of all owned labels in the cluster; with ``label``, of those alone.

    ``sessions`` are those of this ``node``, whose subjects are known.
    """

    def __init__(self, labels: LabelList, sessions: Sessions, node: str) -> None:
        self._labels = labels
        self._sessions = sessions
        self._node = node

    async def answer(
        self, scope: Scope, head: RequestHead, principal: Principal, path: str, send: Send
    ) -> int:
        """Serve one request, return its status; raises GatewayError, which the caller renders."""
        if not principal.operator:
            raise error("gateway:authorization.missing")
        allow(scope["method"], path, "GET")
        wanted = check_labels(parameters(scope, "label"))
        try:
            rows = await self._labels.owners(wanted, MOST + 1)
        except (StoreUnavailable, StoreError) as problem:
            raise error("gateway:service.unavailable", reason=str(problem)) from problem
        labels: dict[str, dict[str, Any]] = {}
        for row in sorted(rows[:MOST]):
            about = labels.setdefault(row.label, {"label": row.label})
            if row.group:
                about["group"] = row.group
            about.setdefault("owners", []).append(self._owner(row))
        body = {"labels": list(labels.values()), "more": len(rows) > MOST}
        headers = {"correlation-id": head.correlation_id, "response-required": "false"}
        await send_answer(send, 200, body, headers)
        return 200

    def _owner(self, row: Owned) -> dict[str, Any]:
        session: Session | None = None
        if row.holder == self._node:
            session = self._sessions.get(row.session)
        owner = {"node": row.holder, "session": row.session, "leaseMs": row.ms_left}
        if session is not None:
            owner["subjects"] = list(session.subjects)
        return owner
