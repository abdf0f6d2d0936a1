"""Text commands of a WebSocket session, carried out (spec websocket-... 1.2, 1.7)."""

from __future__ import annotations

from acks.control import START, TOKEN, Control, read_wish
from app.api.ws_auth import Expiry
from app.gateway import Gateway
from app.session import Session, Subscription


async def carry_out(gateway: Gateway, session: Session, expiry: Expiry, control: Control) -> None:
    """Carry out a text command; all but a token are acknowledged when they hold.

    Raises as :func:`read_wish`, and ``gateway:service.unavailable``; an earlier subscription stays
    as it is then.
    """
    if control.name == TOKEN:
        await expiry.refresh(control.parameters.get("jwtToken", ""))
        return
    if control.name.startswith(START):
        await gateway.entrance.subscribe(session, Subscription(*read_wish(control)), control.kind)
    else:
        await gateway.entrance.unsubscribe(session, control.kind)
    session.put(f"{control.name}:ACK".encode())
