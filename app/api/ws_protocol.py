"""WebSocket of uvicorn with a short way for subscribers' frames (docs/decisions/0006)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from typing_extensions import override
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.speedups import apply_mask

_FINAL_TEXT = 0x81


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket whose whole text messages go straight to a sink, and many frames in one write.

    After the handshake frames are cut here. With a sink, a final, masked text frame of a permitted
    size is handled at once; every other frame goes, whole, through the library, which knows the
    rest of RFC 6455. The endpoint finds this object in its scope under ``extensions["ackgate"]``.
    """

    sink: Callable[[str], bool] | None = None
    """Gets every text; returns False for one that has to take the ordinary way."""
    _rest: bytes = b""
    _fragmented = False

    @override
    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have come."""
        if not self.handshake_complete or self.close_sent:
            super().data_received(self._rest + data)
            self._rest = b""
            return
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        while end - at >= 6:
            first, second = data[at], data[at + 1]
            length, start = second & 0x7F, at + 6
            if length == 126:
                length, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 8
            elif length == 127:
                length, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 14
            if second < 0x80 or length > self.config.ws_max_size:
                # Not masked or too large: the library answers that, and closes.
                super().data_received(data[at:])
                at = end
                break
            stop = start + length
            if stop > end:
                break
            if first == _FINAL_TEXT and self.sink is not None and not self._fragmented:
                self._text(data[at:stop], data[start - 4 : start], data[start:stop])
            else:
                if first & 0x0F < 3:
                    self._fragmented = first < 0x80
                super().data_received(data[at:stop])
            at = stop
            if self._is_closed():
                return
        self._rest = data[at:]

    def _text(self, frame: bytes, mask: bytes, payload: bytes) -> None:
        if mask != b"\0\0\0\0":
            payload = apply_mask(payload, mask)
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            super().data_received(frame)
            return
        assert self.sink is not None
        if not self.sink(text):
            super().data_received(frame)

    @override
    def handle_connect(self, event: Any) -> None:
        """The upgrade request has come."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.handshake_complete:
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions["ackgate"] = self

    @override
    def keepalive_timeout(self) -> None:
        """No pong: say so and close; one who does not even read that is cut off."""
        super().keepalive_timeout()
        self.loop.call_later(self.close_timeout, self.transport.abort)

    def _is_closed(self) -> bool:
        return any((self.disconnected, self.close_sent, self.transport.is_closing()))

    async def send_texts(self, texts: list[bytes]) -> bool:
        """Send text messages (UTF-8) in one write, when the transport takes more.

        False if the connection is closed or closing.
        """
        await self.writable.wait()
        if self._is_closed():
            return False
        frames: list[bytes] = []
        for text in texts:
            frames.append(_frame_head(len(text)))
            frames.append(text)
        self.transport.write(b"".join(frames))
        return True


def _frame_head(length: int) -> bytes:
    """Head of a final, unmasked text frame (RFC 6455, 5.2)."""
    if length < 126:
        return bytes((0x81, length))
    if length < 65_536:
        return b"\x81\x7e" + length.to_bytes(2, "big")
    return b"\x81\x7f" + length.to_bytes(8, "big")
