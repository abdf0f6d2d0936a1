"""WebSocket of uvicorn with a short way for subscribers' frames (docs/decisions/0006)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from typing_extensions import override
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.speedups import apply_mask

_FINAL_TEXT = 0x81
HELD_BYTES = 64 * 1024
"""Bytes that are still read of a connection whose frames are not handled now."""
SOON_BYTES = 64 * 1024
"""Bytes that are sent at the end of a turn without asking whether the connection takes more."""
SLICE = 128
"""Frames of one connection that are handled in one go; then it is the turn of others."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket whose whole text messages go straight to a sink, and many frames in one write.

    After the handshake frames are cut here. With a sink, a final, masked text frame of a permitted
    size is handled at once; every other frame goes, whole, through the library, which knows the
    rest of RFC 6455. The endpoint finds this object in its scope under ``extensions["ackgate"]``.
    """

    _sink: Callable[[str], bool] | None = None
    _holds = 0
    _rest: bytes = b""
    _fragmented = False
    _soon: list[bytes] | None = None
    _soon_bytes = 0
    _writing = False

    def attach(self, sink: Callable[[str], bool]) -> None:
        """Give every text to ``sink``, which returns False for one that takes the ordinary way.

        While a message that took that way waits for its reader, nothing after it is handled:
        messages are taken in their order. The reader calls :meth:`release` for each of them.
        """
        self._sink = sink
        for _ in range(self.queue.qsize()):
            self.hold()

    def detach(self) -> None:
        """The session is over: what comes now is the library's business alone."""
        self._sink = None
        self._send_soon()
        if self._holds and not self._is_closed():
            self.transport.resume_reading()
        self._holds = 0

    def hold(self) -> None:
        """Handle no more frames until :meth:`release` has been called as often as this.

        A little more is read, so that the end of the connection is noticed.
        """
        self._holds += 1

    def release(self) -> None:
        """Undo one :meth:`hold`; with the last of them, reading goes on."""
        if not self._holds:
            return  # detached meanwhile
        self._holds -= 1
        if not self._holds and not self._is_closed():
            # Not from within: this may be called while a frame is being handled.
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._is_stopped():
            self.data_received(b"")
        if not self._is_stopped() and not self.read_paused:
            self.transport.resume_reading()

    def _is_stopped(self) -> bool:
        return self._holds > 0 or self._is_closed()

    @override
    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have come."""
        if not self.handshake_complete or self.close_sent:
            super().data_received(self._rest + data)
            self._rest = b""
            return
        data = self._rest + data if self._rest else data
        at, end, handled = 0, len(data), 0
        while end - at >= 6 and not self._holds:
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
            if first == _FINAL_TEXT and self._sink is not None and not self._fragmented:
                self._text(data[at:stop], data[start - 4 : start], data[start:stop])
            else:
                if first & 0x0F < 3:
                    self._fragmented = first < 0x80
                self._pass_on(data[at:stop])
            at = stop
            if self._is_closed():
                return
            handled += 1
            if handled == SLICE:
                self.hold()
                self.loop.call_soon(self.release)
        self._rest = data[at:]
        if self._holds and len(self._rest) > HELD_BYTES:
            self.transport.pause_reading()

    def _text(self, frame: bytes, mask: bytes, payload: bytes) -> None:
        if mask != b"\0\0\0\0":
            payload = apply_mask(payload, mask)
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            self._pass_on(frame)
            return
        assert self._sink is not None
        if not self._sink(text):
            self._pass_on(frame)

    def _pass_on(self, frame: bytes) -> None:
        """Have the library handle a frame; if it was the end of a message, wait for its reader."""
        waiting = self.queue.qsize()
        super().data_received(frame)
        if self._sink is not None and self.queue.qsize() > waiting:
            self.hold()

    @override
    def handle_connect(self, event: Any) -> None:
        """The upgrade request has come."""
        super().handle_connect(event)
        if self.handshake_initiated and not self.handshake_complete:
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions["ackgate"] = self

    @override
    def keepalive_timeout(self) -> None:
        """No pong: say so and close; one who does not even read that is cut off.

        While we do not read, a pong may be there that we have not seen.
        """
        if self._holds and self.ping_timeout is not None and not self._is_closed():
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self.loop.call_later(self.close_timeout, self.transport.abort)

    def _is_closed(self) -> bool:
        return any((self.disconnected, self.close_sent, self.transport.is_closing()))

    async def room(self) -> None:
        """Wait until the transport takes more: the client reads what it is sent."""
        await self.writable.wait()

    async def send_texts(self, texts: list[bytes]) -> bool:
        """Send text messages (UTF-8) in one write, when the transport takes more.

        False if the connection is closed or closing.
        """
        self._writing = True
        try:
            await self.writable.wait()
        finally:
            self._writing = False
        if self._is_closed():
            return False
        self._write(texts)
        return True

    def send_soon(self, text: bytes) -> bool:
        """Send a text message (UTF-8) at the end of this turn of the loop, many in one write.

        False if that cannot be: it then has to wait its turn in :meth:`send_texts`. Whoever calls
        this has nothing else waiting there.
        """
        if self._writing or self._soon_bytes > SOON_BYTES or not self.writable.is_set():
            return False
        if self._soon is None:
            self._soon = []
            self.loop.call_soon(self._send_soon)
        self._soon.append(text)
        self._soon_bytes += len(text)
        return True

    def _send_soon(self) -> None:
        texts, self._soon, self._soon_bytes = self._soon, None, 0
        if texts and not self._is_closed():
            self._write(texts)

    def _write(self, texts: list[bytes]) -> None:
        frames: list[bytes] = []
        for text in texts:
            frames.append(_frame_head(len(text)))
            frames.append(text)
        self.transport.write(b"".join(frames))


def _frame_head(length: int) -> bytes:
    """Head of a final, unmasked text frame (RFC 6455, 5.2)."""
    if length < 126:
        return bytes((0x81, length))
    if length < 65_536:
        return b"\x81\x7e" + length.to_bytes(2, "big")
    return b"\x81\x7f" + length.to_bytes(8, "big")
