"""HTTP push against a real HTTP server: requests, responses, failures."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import pytest

from connections.driver import Limits, Publication
from connections.http_push.driver import HttpPushDriver
from tests.brokers.contract import OpeningContract, PublishingContract
from tests.brokers.http_peer import HttpPeer, answering, document, http_peer, push, pushed
from tests.brokers.http_server import Answer, Asked, http_server
from tests.brokers.peers import Client, client
from tests.servers import wait_for

peer = pytest.fixture(http_peer)


class TestHttpPush(PublishingContract, OpeningContract):
    """The contract of all drivers."""


# ---------------------------------------------------------------------- the request


@pytest.mark.parametrize(
    ("base", "address", "expected"),
    [
        ("", "POST:/a/b", ("POST", "/a/b")),
        ("/base", "PUT:/a", ("PUT", "/base/a")),
        ("/base/", "PATCH:a", ("PATCH", "/base/a")),
        ("", "POST:/a?x=1&y=%20", ("POST", "/a?x=1&y=%20")),
        ("", "POST:/things/org.acme:one", ("POST", "/things/org.acme:one")),
        ("", "POST:/a b/ö#c", ("POST", "/a%20b/%C3%B6%23c")),
        ("", "POST:/a/%2Fb", ("POST", "/a/%2Fb")),
        ("", "POST://elsewhere/x", ("POST", "//elsewhere/x")),
    ],
)
async def test_an_address_is_a_method_and_a_path(
    peer: HttpPeer, base: str, address: str, expected: tuple[str, str]
) -> None:
    connection = document(peer.server)
    connection = replace(connection, uri=replace(connection.uri, path=base))
    _, asked = await pushed(peer, Publication(address, b"{}", None), connection)
    assert (asked.method, asked.target) == expected
    assert asked.body == b"{}"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"http.path": "other/ä?"}, "/other/%C3%A4%3F?x=1"),
        ({"http.path": "/other"}, "/other?x=1"),
        ({"http.query": "y=2"}, "/a?y=2"),
        ({"http.query": "", "http.path": "/b"}, "/b"),
    ],
)
async def test_headers_that_overrule_the_address(
    peer: HttpPeer, headers: dict[str, str], expected: str
) -> None:
    _, asked = await pushed(peer, Publication("POST:/a?x=1", b"", None, headers))
    assert asked.target == expected
    assert not asked.headers.keys() & headers.keys()


async def test_headers_reach_the_server(peer: HttpPeer) -> None:
    headers = {
        "Device-Id": " a ö\t",
        "content-type": "text/plain",
        "host": "elsewhere",
        "content-length": "7",
        "transfer-encoding": "chunked",
        "connection": "close",
        "in valid": "x",
        "injected": "x\r\ny: z",
    }
    _, asked = await pushed(peer, Publication("POST:/in", b"{}", "application/json", headers))
    assert asked.headers["device-id"] == "a ö"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["host"] == f"127.0.0.1:{peer.server.port}"
    assert asked.headers["content-length"] == "2"
    assert asked.headers["accept-encoding"] == "identity"
    absent = {"transfer-encoding", "in valid", "injected", "y", "cookie", "authorization"}
    assert not asked.headers.keys() & absent


async def test_methods_without_a_body(peer: HttpPeer) -> None:
    async with client(peer, document(peer.server)) as one:
        for method in ("GET", "DELETE", "PUT"):
            await push(one, Publication(f"{method}:/in", b"body", None))
    assert [asked.body for asked in peer.server.asked] == [b"", b"", b"body"]
    assert "content-length" not in peer.server.asked[0].headers


async def test_methods_without_a_body_can_be_named(peer: HttpPeer) -> None:
    async with client(peer, document(peer.server, omitRequestBody="put, PATCH")) as one:
        for method in ("GET", "PUT", "PATCH", "POST"):
            await push(one, Publication(f"{method}:/in", b"body", None))
    assert [asked.body for asked in peer.server.asked] == [b"body", b"", b"", b"body"]


# --------------------------------------------------------------------- the response


@pytest.mark.parametrize(
    ("body", "kind", "payload"),
    [
        (b"hello!", "application/octet-stream", "aGVsbG8h"),  # vector issued-ack-002
        (b'{"a": [1, "\xc3\xb6"]}', "application/json", {"a": [1, "ö"]}),
        (b'{"a": 1}', "application/vnd.eclipse.ditto+json; charset=utf-8", {"a": 1}),
        (b"null", "application/json", None),
        (b"{oops", "application/json", "{oops"),
        (b"NaN", "application/json", "NaN"),
        (b"[" * 100_000, "application/json", "[" * 100_000),
        (b"h\xc3\xb6", "text/plain", "hö"),
        (b"h\xf6", "text/plain; charset=ISO-8859-1", "hö"),
        (b"h\xf6", "text/plain", base64.b64encode(b"h\xf6").decode()),
        (b"x", "text/plain; charset=none-such", "eA=="),
        (b"x", "text/plain; charset=hex", "eA=="),
        (b"x", None, "eA=="),
        (b"", "application/json", None),
    ],
)
async def test_a_response_is_an_ack(
    peer: HttpPeer, body: bytes, kind: str | None, payload: Any
) -> None:
    answering(peer.server, Answer(418, body, kind, {"x-own": "a"}))
    published, _ = await pushed(peer, Publication("POST:/in", b"{}", None))
    assert (published.status, published.payload, published.lost) == (418, payload, False)
    assert (published.body, published.content_type) == (body, kind)
    assert published.headers["x-own"] == "a"


@pytest.mark.parametrize("status", [200, 204, 304, 400, 409, 503, 599])
async def test_the_status_is_passed_on(peer: HttpPeer, status: int) -> None:
    answering(peer.server, Answer(status))
    published, _ = await pushed(peer, Publication("POST:/in", b"{}", None))
    assert (published.status, published.payload) == (status, None)


async def test_an_unknown_status(peer: HttpPeer) -> None:
    answering(peer.server, Answer(799))
    published, _ = await pushed(peer, Publication("POST:/in", b"{}", None))
    assert published.status == 503
    assert "799" in published.payload["message"]


async def test_redirects_are_not_followed(peer: HttpPeer) -> None:
    answering(peer.server, Answer(307, headers={"location": "/elsewhere"}))
    published, _ = await pushed(peer, Publication("POST:/in", b"{}", None))
    assert published.status == 307
    assert published.headers["location"] == "/elsewhere"
    assert len(peer.server.asked) == 1


async def test_cookies_are_not_kept(peer: HttpPeer) -> None:
    answering(peer.server, Answer(headers={"set-cookie": "session=1; Path=/"}), Answer())
    async with client(peer, document(peer.server)) as one:
        for _ in range(2):
            await push(one, Publication("POST:/in", b"{}", None))
    assert "cookie" not in peer.server.asked[1].headers


async def test_a_response_that_is_too_large(peer: HttpPeer) -> None:
    answering(peer.server, Answer(200, b"x" * 1001), Answer(200, b"x" * 1000))
    async with client(peer, document(peer.server), limits=Limits(message_bytes=1000)) as one:
        large = await push(one, Publication("POST:/in", b"{}", None))
        fitting = await push(one, Publication("POST:/in", b"{}", None))
    assert (large.status, large.body) == (500, None)
    assert fitting.status == 200


async def test_a_compressed_response_stays_as_it_is(peer: HttpPeer) -> None:
    answering(peer.server, Answer(200, b"not really", "text/plain", {"content-encoding": "gzip"}))
    published, _ = await pushed(peer, Publication("POST:/in", b"{}", None))
    assert (published.status, published.body) == (200, b"not really")


# ------------------------------------------------------------------------- failures


@pytest.mark.parametrize("answer", [None, Answer(200, b"half of it", cut=True)])
async def test_a_connection_that_breaks_is_answered_with_500(
    peer: HttpPeer, answer: Answer | None
) -> None:
    answering(peer.server, answer, Answer(), Answer())
    async with client(peer, document(peer.server)) as one:
        published = await push(one, Publication("POST:/in", b"{}", None))
        assert published.status == 500
        assert published.payload["message"] == "Encountered <RemoteProtocolError>."
        assert published.payload["description"]
        assert not published.lost
        for _ in range(2):
            assert (await push(one, Publication("POST:/in", b"{}", None))).status == 200
        (ill, well) = one.statuses
    assert ill[:3] == ("target", "POST:/in", False)
    assert ill[3]
    assert well == ("target", "POST:/in", True, "")
    assert one.lost == []


async def test_a_server_that_went_away_is_answered_with_500(peer: HttpPeer) -> None:
    async with http_server() as gone:
        one = Client(HttpPushDriver(document(gone), 0, 1, Limits()))
        await one.open()
    published = await push(one, Publication("POST:/in", b"{}", None))
    await one.driver.close(1)
    assert published.status == 500
    assert published.payload["message"] == "Encountered <ConnectError>."


async def test_a_server_that_does_not_answer_in_time(peer: HttpPeer) -> None:
    never = asyncio.Event()

    async def answer(asked: Asked) -> Answer | None:
        if asked.body == b"slow":
            await never.wait()
        return Answer()

    peer.server.answers = answer
    async with client(peer, document(peer.server)) as one:
        slow = asyncio.create_task(push(one, Publication("POST:/in", b"slow", None), 0.2))
        await wait_for(lambda: peer.server.asked, what="the slow request")
        behind = await push(one, Publication("POST:/in", b"behind", None))
        assert (await slow).status == 408
        assert behind.status == 200


async def test_a_publication_can_be_cancelled(peer: HttpPeer) -> None:
    never = asyncio.Event()

    async def answer(asked: Asked) -> Answer | None:
        await never.wait()
        return None

    peer.server.answers = answer
    async with client(peer, document(peer.server)) as one:
        waiting = asyncio.create_task(push(one, Publication("POST:/in", b"", None)))
        await wait_for(lambda: peer.server.asked, what="the request")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await wait_for(lambda: not peer.server.open, what="the end of the connection")


@pytest.mark.parametrize(
    "address",
    ["/in", "FETCH:/in", "post:/in", "", "{{ header:m }}:/in", "POST:/a\nb", "POST:/\ud800"],
)
async def test_an_address_that_is_none(peer: HttpPeer, address: str) -> None:
    async with client(peer, document(peer.server)) as one:
        published = await push(one, Publication(address, b"", None))
    assert published.status == 400
    assert peer.server.asked == []


async def test_headers_of_the_transport_are_none_of_the_acks(peer: HttpPeer) -> None:
    kept = {"content-type": "text/plain", "x-own": "1", "correlation-id": "c", "location": "/a"}
    dropped = {
        "connection": "keep-alive",
        "set-cookie": "secret=1",
        "www-authenticate": "Basic",
        "server": "s",
        "date": "now",
        "ditto-weak-ack": "true",
        "requested-acks": '["a:b"]',
    }
    answering(peer.server, Answer(200, b"ok", headers={**kept, **dropped}))
    published, _ = await pushed(peer, Publication("POST:/in", b"{}", None))
    assert published.headers == kept
