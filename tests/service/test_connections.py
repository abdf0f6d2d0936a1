"""What clients do with their TCP connections: pipelining, small pieces, going away."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterable

import httpx
import pytest

from tests.gateways import (
    Gateway,
    RawHttp,
    Subscriber,
    ack_envelope,
    basic,
    new_id,
    new_label,
    put_request,
    revision,
    thing,
)
from tests.servers import wait_for


async def warm(raw: RawHttp) -> None:
    """Make the credentials known to the gateway, so that PUTs take the short way."""
    await raw.send(put_request(new_id(), b"{}"))
    assert (await raw.answer())[0] == 201


async def test_keep_alive(gateway: Gateway) -> None:
    name = new_id()
    async with RawHttp.open(gateway) as raw:
        for expected in (201, 204, 204):
            await raw.send(put_request(name, b"{}"))
            status, headers, _ = await raw.answer()
            assert status == expected
            assert "connection" not in headers
            assert headers["date"]


@pytest.mark.parametrize("known", [False, True], ids=["first request", "known credentials"])
async def test_pipelined_puts_are_answered_in_order(gateway: Gateway, known: bool) -> None:
    """Even when the first of them takes longest."""
    name, label = new_id(), new_label()
    async with RawHttp.open(gateway) as raw:
        if known:
            await warm(raw)
        await raw.send(
            put_request(name, b"{}", query=f"?requested-acks={label}&timeout=300ms")
            + put_request(name, b"1", path="/attributes/a")
            + put_request(name, b"{", path="/attributes/b")
            + put_request(name, b"3", path="/attributes/c")
        )
        answers = [await raw.answer() for _ in range(4)]
    assert [status for status, _, _ in answers] == [408, 201, 400, 201]
    assert [body for _, _, body in answers[1::2]] == [b"1", b"3"]


async def test_many_pipelined_requests(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    get = f"GET {thing(name)} HTTP/1.1\r\nHost: x\r\nAuthorization: {basic('ditto')}\r\n\r\n"
    async with RawHttp.open(gateway) as raw:
        await warm(raw)
        requests = [
            put_request(name, str(n).encode(), path="/attributes/n") if n % 5 else get.encode()
            for n in range(100)
        ]
        await raw.send(b"".join(requests))
        for number in range(100):
            status, _, body = await raw.answer()
            if number % 5:
                assert status == (201 if number == 1 else 204)
            else:
                assert status == 200
                before = number - 1
                shown = json.loads(body).get("attributes", {}).get("n")
                assert shown == (before if before > 0 else None)
    assert await revision(client, name) == 81


@pytest.mark.parametrize("known", [False, True], ids=["first request", "known credentials"])
async def test_a_put_in_many_small_segments(
    gateway: Gateway, client: httpx.AsyncClient, known: bool
) -> None:
    name = new_id()
    request = put_request(name, b'{"attributes":{"text":"in many pieces"}}')
    async with RawHttp.open(gateway) as raw:
        raw.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if known:
            await warm(raw)
        for byte in request:
            await raw.send(bytes((byte,)))
            await asyncio.sleep(0)
        status, _, body = await raw.answer()
        assert (status, json.loads(body)["attributes"]) == (201, {"text": "in many pieces"})
        await raw.send(put_request(name, b"{}"))
        assert (await raw.answer())[0] == 204


async def test_chunked_bodies(gateway: Gateway) -> None:
    async with RawHttp.open(gateway) as raw:
        for _ in range(2):
            head = put_request(new_id(), b"").replace(
                b"Content-Length: 0", b"Transfer-Encoding: chunked"
            )
            await raw.send(head + b'8\r\n{"attrib\r\n')
            await raw.send(b'8\r\nutes":{}\r\n1\r\n}\r\n0\r\n\r\n')
            status, _, body = await raw.answer()
            assert (status, json.loads(body)["attributes"]) == (201, {})


async def test_expect_100_continue(gateway: Gateway) -> None:
    async with RawHttp.open(gateway) as raw:
        await warm(raw)
        head, _, body = put_request(new_id(), b"{}", "Expect: 100-continue").partition(b"\r\n\r\n")
        await raw.send(head + b"\r\n\r\n")
        assert (await raw.answer())[0] == 100
        await raw.send(body)
        assert (await raw.answer())[0] == 201


async def test_connection_close(gateway: Gateway) -> None:
    async with RawHttp.open(gateway) as raw:
        await warm(raw)
        await raw.send(put_request(new_id(), b"{}", "Connection: close"))
        status, headers, _ = await raw.answer()
        assert (status, headers["connection"]) == (201, "close")
        assert await raw.at_end()


async def test_http_1_0(gateway: Gateway) -> None:
    async with RawHttp.open(gateway) as raw:
        await raw.send(put_request(new_id(), b"{}", version="1.0"))
        assert (await raw.answer())[0] == 201
        assert await raw.at_end()
    async with RawHttp.open(gateway) as raw:
        await raw.send(put_request(new_id(), b"{}", "Connection: keep-alive", version="1.0"))
        assert (await raw.answer())[0] == 201


@pytest.mark.parametrize("known", [False, True], ids=["first request", "known credentials"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_client_that_goes_away_while_it_waits(
    gateway: Gateway, client: httpx.AsyncClient, known: bool, reset: bool
) -> None:
    """Its change is made, its ack comes to nothing, and others do not notice."""
    name, label = new_id(), new_label()
    async with Subscriber.open(gateway, label) as subscriber:
        async with RawHttp.open(gateway) as raw:
            if known:
                await warm(raw)
            await raw.send(put_request(name, b"{}", query=f"?requested-acks={label}"))
            mine = name.partition(":")[2]  # events of what warmed the connection come, too
            await wait_for(lambda: any(mine in e["topic"] for e in subscriber.events))
            if reset:
                raw.writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
        event = next(e for e in subscriber.events if mine in e["topic"])
        await subscriber.send(ack_envelope(event, label, status=200))
        await subscriber.nothing_came()
    assert await revision(client, name) == 1
    assert gateway.events("request.failed") == []


async def test_a_client_that_goes_away_in_the_middle_of_its_request(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name = new_id()
    for known in (False, True):
        async with RawHttp.open(gateway) as raw:
            if known:
                await warm(raw)
            request = put_request(name, b'{"attributes":{}}')
            await raw.send(request[:-3])
    assert await revision(client, name) == 0
    assert gateway.events("request.failed") == []


CHUNKED = (
    b"PUT %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%b"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
)


@pytest.mark.parametrize("known", [False, True], ids=["first request", "known credentials"])
async def test_trailers_are_no_headers(gateway: Gateway, known: bool) -> None:
    """Neither of their own request nor of the next one with the same head."""
    login = f"Authorization: {basic('ditto')}\r\n".encode()
    async with RawHttp.open(gateway) as raw:
        if known:
            await warm(raw)
        path = thing(new_id()).encode()
        await raw.send(CHUNKED % (path, b"") + login + b"\r\n")
        assert (await raw.answer())[0] == 401
        await raw.send(CHUNKED % (path, login) + b"timeout: 0\r\n\r\n")
        assert (await raw.answer())[0] == 201
        await raw.send(CHUNKED % (path, login + b"timeout: 0\r\n") + b"\r\n")
        assert (await raw.answer())[0] == 202


H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
HEALTH = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def asking_for_http2(name: str, method: str, body: bytes, chunked: bool) -> bytes:
    """A changing request as clients send it that would rather speak HTTP/2."""
    path = "/api/2/things" if method == "POST" else thing(name, "/attributes")
    media_type = "merge-patch+json" if method == "PATCH" else "json"
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = (
        f"{method} {path} HTTP/1.1", "Host: x", *H2C, length,
        f"Authorization: {basic('ditto')}", f"Content-Type: application/{media_type}", "\r\n",
    )  # fmt: skip
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    return "\r\n".join(head).encode() + sent


@pytest.mark.parametrize("known", [False, True], ids=["first request", "known credentials"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("later", [False, True], ids=["one segment", "body later"])
async def test_upgrades_to_other_protocols_are_ignored(
    gateway: Gateway, client: httpx.AsyncClient, known: bool, chunked: bool, later: bool
) -> None:
    """Their bodies are bodies, and what follows is the next request (RFC 9110, 7.8)."""
    name = new_id()
    await client.put(thing(name), json={"attributes": {}})
    async with RawHttp.open(gateway) as raw:
        raw.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if known:
            await warm(raw)
        for number, method in enumerate(("PUT", "PUT", "PATCH", "POST")):
            body = json.dumps({"n": number, "text": HEALTH.decode()}).encode()
            request = asking_for_http2(name, method, body, chunked)
            end = request.index(b"\r\n\r\n") + 4
            if later:
                await raw.send(request[:end])
                await client.get("/health/live")  # meanwhile the head has been read
                request = request[end:]
            await raw.send(request)
            status, headers, _ = await raw.answer()
            assert (status, "connection" in headers) == (201 if method == "POST" else 204, False)
            if method != "POST":
                shown = (await client.get(thing(name, "/attributes"))).json()
                assert shown == {"n": number, "text": HEALTH.decode()}
        await raw.send(put_request(name, b"1", path="/attributes/last"))
        assert (await raw.answer())[0] == 201
    assert gateway.events("request.failed") == []


async def test_pipelined_requests_that_ask_for_an_upgrade(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    name, label = new_id(), new_label()
    await client.put(thing(name), json={})
    query = f"?requested-acks={label}&timeout=300ms"
    slow = put_request(name, b"0", path="/attributes/n", query=query)
    async with RawHttp.open(gateway) as raw:
        await warm(raw)
        asking = [put_request(name, b"%d" % n, *H2C, path="/attributes/n") for n in range(1, 50)]
        await raw.send(slow + b"".join(asking) + put_request(name, b"50", path="/attributes/n"))
        answers = [(await raw.answer())[0] for _ in range(51)]
    assert answers == [408] + [204] * 50
    assert await revision(client, name) == 52


async def test_headers_of_an_ignored_upgrade_do_not_travel(gateway: Gateway) -> None:
    async with Subscriber.open(gateway, new_label()) as subscriber, RawHttp.open(gateway) as raw:
        seen = len(subscriber.events)
        await raw.send(put_request(new_id(), b"{}", *H2C, "x-mine: 1"))
        assert (await raw.answer())[0] == 201
        await wait_for(lambda: len(subscriber.events) > seen)
        headers = subscriber.events[seen]["headers"]
        assert headers["x-mine"] == "1"
        assert {"upgrade", "http2-settings", "connection"}.isdisjoint(headers)


async def test_a_length_is_not_that_of_an_earlier_request(gateway: Gateway) -> None:
    upgrade = HEALTH[:-2] + "\r\n".join((*H2C, "\r\n")).encode()
    async with RawHttp.open(gateway) as raw:
        await warm(raw)
        await raw.send(upgrade + HEALTH)
        assert [(await raw.answer())[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("target", ["example.org:443", "[::1]:1", "/health/live"])
async def test_connect_is_refused(gateway: Gateway, target: str) -> None:
    for lines in ((), H2C):
        head = "\r\n".join((f"CONNECT {target} HTTP/1.1", "Host: x", *lines, "\r\n"))
        async with RawHttp.open(gateway) as raw:
            await raw.send(head.encode() + HEALTH)
            assert (await raw.answer())[0] == 400
            assert await raw.at_end()


async def test_a_websocket_while_a_request_is_open_is_refused(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    """And the open request is carried out once."""
    name, label = new_id(), new_label()
    shake = (
        "GET /ws/2 HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Authorization: {basic('ditto')}", "\r\n",
    )  # fmt: skip
    async with RawHttp.open(gateway) as raw:
        await warm(raw)
        put = put_request(name, b"{}", query=f"?requested-acks={label}&timeout=300ms")
        await raw.send(put + "\r\n".join(shake).encode())
        assert await raw.at_end()
    await client.put(thing(name, "/attributes"), json={})
    assert await revision(client, name) == 2


async def send_all(raw: RawHttp, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        await raw.send(piece)


async def test_endless_trailers_are_cut_off(gateway: Gateway) -> None:
    async with RawHttp.open(gateway) as raw:
        await raw.send(CHUNKED % (thing(new_id()).encode(), b""))
        pieces = (b"x: " + b"y" * 8192 + b"\r\n" for _ in range(1000))
        with pytest.raises(ConnectionError):
            await send_all(raw, pieces)


@pytest.mark.parametrize("path", ["/attributes/gr\u00f6\u00dfe", "/attributes/a#b"])
async def test_a_path_that_is_no_uri_is_refused_the_same_way_each_time(
    gateway: Gateway, path: str
) -> None:
    answers = []
    for _ in range(2):
        async with RawHttp.open(gateway) as raw:
            await warm(raw)
            name = new_id()
            await raw.send(put_request(name, b"{}"))
            assert (await raw.answer())[0] == 201
            head = put_request(name, b"1", path="/attributes/X")
            await raw.send(head.replace(b"/attributes/X", path.encode()))
            answers.append((await raw.answer())[0])
    assert answers[0] == answers[1]
    assert answers[0] in (201, 400)


async def test_a_long_path_is_refused(gateway: Gateway) -> None:
    async with RawHttp.open(gateway) as raw:
        await warm(raw)
        await raw.send(put_request(new_id(), b"1", path="/attributes/" + "a" * 20_000))
        assert (await raw.answer())[0] == 431
