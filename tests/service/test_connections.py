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
            seen = len(subscriber.events)
            await raw.send(put_request(name, b"{}", query=f"?requested-acks={label}"))
            await wait_for(lambda: len(subscriber.events) > seen)
            if reset:
                raw.writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
        event = next(e for e in subscriber.events if name.partition(":")[2] in e["topic"])
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
