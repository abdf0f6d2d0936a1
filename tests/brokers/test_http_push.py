"""HTTP push against a real HTTP server: connections/http_push.py."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from connections.driver import Limits, OpenError, Publication, Published
from connections.http_push import HttpPushDriver
from connections.model import Connection, Uri
from tests.brokers.authority import Authority
from tests.brokers.contract import (
    DEADLINE,
    Client,
    OpeningContract,
    Peer,
    PublishingContract,
    Received,
    Tls,
    client,
    connection_of,
)
from tests.brokers.http_server import Answer, Asked, HttpServer, http_server
from tests.servers import free_port, wait_for


def server_tls(directory: Path, authority: Authority, clients: str = "") -> ssl.SSLContext:
    """Of a server; ``clients``: the authority that its clients have to show."""
    files = authority.issue(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients)
    return context


class HttpPeer(Peer):
    """A server without TLS and one with it."""

    can = frozenset({"headers", "content-type", "confirm", "invalid address", "tls"})
    factory = HttpPushDriver
    invalid = "no method/at/all"

    def __init__(self, plain: HttpServer, secure: HttpServer, authority: Authority) -> None:
        self.server = plain
        self.uri = Uri("http", "127.0.0.1", plain.port)
        secure_uri = Uri("https", "localhost", secure.port)
        self.tls = Tls(secure_uri, authority.pem, Authority().pem)
        self._received = 0

    @override
    def connection(
        self,
        sources: Sequence[str] = (),
        targets: Sequence[str] = (),
        *,
        uri: Uri | None = None,
        ca: str | None = None,
        **specific: str,
    ) -> Connection:
        return connection_of(
            "http-push", uri or self.uri, sources, targets, ca=ca, specific=specific
        )

    @override
    async def address(self, name: str) -> str:
        return f"POST:/{name}"

    @override
    async def send(
        self,
        address: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> None:
        raise NotImplementedError("HTTP push consumes nothing")

    @override
    async def receive(self, address: str) -> Received:
        await wait_for(lambda: len(self.server.asked) > self._received, DEADLINE, "a request")
        asked = self.server.asked[self._received]
        self._received += 1
        return Received(asked.body, asked.headers, asked.headers.get("content-type"))

    @override
    async def unsettled(self, address: str) -> int:
        return 0


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
async def peer(tmp_path: Path, authority: Authority) -> AsyncIterator[HttpPeer]:
    async with http_server() as plain, http_server(server_tls(tmp_path, authority)) as secure:
        yield HttpPeer(plain, secure, authority)


@pytest.fixture
async def server(peer: HttpPeer) -> HttpServer:
    return peer.server


class TestHttpPush(PublishingContract, OpeningContract):
    """The contract of all drivers."""


def document(server: HttpServer, **specific: str) -> Connection:
    """A connection with one target, POST:/in."""
    uri = Uri("http", "127.0.0.1", server.port)
    return connection_of("http-push", uri, (), ("POST:/in",), specific=specific)


async def push(one: Client, publication: Publication, deadline_s: float = DEADLINE) -> Published:
    return await one.driver.publish(publication, deadline_s)


async def pushed(
    peer: HttpPeer, publication: Publication, connection: Connection | None = None
) -> tuple[Published, Asked]:
    """What became of a publication, and what the server was asked for."""
    async with client(peer, connection or document(peer.server)) as one:
        published = await push(one, publication)
    return published, peer.server.asked[-1]


async def refusal(connection: Connection) -> OpenError:
    """The error of a connection that cannot be opened."""
    one = Client(HttpPushDriver(connection, 0, 1, Limits()))
    with pytest.raises(OpenError) as caught:
        await one.open()
    await one.driver.close(1)
    return caught.value


def answering(server: HttpServer, *answers: Answer | None) -> None:
    """Let it answer these, one after the other."""
    left = iter(answers)

    async def answer(asked: Asked) -> Answer | None:
        return next(left)

    server.answers = answer


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


# ------------------------------------------------------------- parallelism and order


class Held:
    """Requests that wait for the test to let them go, by body."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._gates: dict[bytes, asyncio.Event] = {}
        server.answers = self._answer

    def let(self, body: bytes) -> None:
        self._gate(body).set()

    async def come(self, count: int) -> list[bytes]:
        """The first ``count`` requests, by body."""
        await wait_for(lambda: len(self.server.asked) >= count, what=f"{count} requests")
        return [asked.body for asked in self.server.asked]

    def _gate(self, body: bytes) -> asyncio.Event:
        return self._gates.setdefault(body, asyncio.Event())

    async def _answer(self, asked: Asked) -> Answer:
        await self._gate(asked.body).wait()
        return Answer()


async def begin(one: Client, *bodies: bytes, keys: bool = False) -> list[asyncio.Task[Published]]:
    """Publications in this order, not waited for; ``keys``: each has its own."""
    tasks = []
    for body in bodies:
        key = body.decode() if keys else None
        task = asyncio.create_task(push(one, Publication("POST:/in", body, None, key=key)))
        tasks.append(task)
    return tasks


async def test_one_request_at_a_time_is_the_default(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server)) as one:
        tasks = await begin(one, b"1", b"2", b"3", keys=True)
        for count, body in enumerate((b"1", b"2", b"3"), 1):
            assert await held.come(count) == [b"1", b"2", b"3"][:count]
            held.let(body)
        assert {(await task).status for task in tasks} == {200}
    assert {asked.connection for asked in peer.server.asked} == {2}  # the first one was the probe


async def test_parallel_requests_keep_the_order_of_a_key(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server, parallelism="2")) as one:
        slow = await begin(one, b"a1", b"a2")  # no key: one lane for the address
        await held.come(1)
        quick: list[asyncio.Task[Published]] = []
        names = [f"k{n}".encode() for n in range(20)]
        for name in names:
            held.let(name)
        quick = await begin(one, *names, keys=True)
        # Those that share the lane of the slow ones wait for them, the others do not.
        await wait_for(lambda: any(task.done() for task in quick), what="a quick one")
        assert [asked.body for asked in peer.server.asked if asked.body[:1] == b"a"] == [b"a1"]
        held.let(b"a1")
        held.let(b"a2")
        assert {(await task).status for task in (*slow, *quick)} == {200}
    bodies = [asked.body for asked in peer.server.asked]
    assert bodies.index(b"a1") < bodies.index(b"a2")
    assert len({asked.connection for asked in peer.server.asked}) == 2


async def test_too_many_publications_at_once(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server), limits=Limits(publishing=2)) as one:
        tasks = await begin(one, b"1", b"2")
        await held.come(1)
        assert (await push(one, Publication("POST:/in", b"3", None))).status == 503
        held.let(b"1")
        held.let(b"2")
        assert {(await task).status for task in tasks} == {200}


async def test_closing_waits_for_requests(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server)) as one:
        (task,) = await begin(one, b"1")
        await held.come(1)
        closing = asyncio.create_task(one.driver.close(DEADLINE))
        await asyncio.sleep(0)
        assert (await push(one, Publication("POST:/in", b"2", None))).status == 503
        held.let(b"1")
        await closing
        assert (await task).status == 200


async def test_closing_does_not_wait_for_ever(peer: HttpPeer) -> None:
    held = Held(peer.server)
    async with client(peer, document(peer.server)) as one:
        tasks = await begin(one, b"1", b"2")
        await held.come(1)
        await one.driver.close(0.05)
        assert {(await task).status for task in tasks} == {500}
    await wait_for(lambda: not peer.server.open, what="the end of the connections")


async def test_an_idle_connection_is_not_used_again(peer: HttpPeer) -> None:
    async with client(peer, document(peer.server, idleTimeout="0s")) as one:
        for _ in range(2):
            await push(one, Publication("POST:/in", b"", None))
    assert len({asked.connection for asked in peer.server.asked}) == 2


# ------------------------------------------------------------- documents, credentials


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"specific": {"parallelism": "0"}}, "parallelism"),
        ({"specific": {"parallelism": "many"}}, "parallelism"),
        ({"specific": {"parallelism": "9" * 5000}}, "parallelism"),
        ({"specific": {"idleTimeout": "soon"}}, "idleTimeout"),
        ({"credentials": {"type": "hmac"}}, "hmac"),
        ({"credentials": {"type": "oauth-client-credentials"}}, "tokenEndpoint"),
        ({"uri": Uri("http", "a" * 300, 80)}, "host"),
    ],
)
async def test_a_document_that_cannot_work(
    server: HttpServer, changes: dict[str, Any], said: str
) -> None:
    error = await refusal(replace(document(server), **changes))
    assert error.cause == "misconfigured"
    assert said in str(error)


async def test_a_target_without_a_method(server: HttpServer) -> None:
    uri = Uri("http", "127.0.0.1", server.port)
    error = await refusal(connection_of("http-push", uri, (), ("/in",)))
    assert error.cause == "misconfigured"


async def test_placeholders_in_a_target(peer: HttpPeer) -> None:
    targets = ("POST:/{{ thing:id }}", "{{ header:method }}:/in")
    async with client(peer, peer.connection(targets=targets)):
        pass


@pytest.mark.parametrize("where", ["uri", "credentials"])
async def test_user_and_password(peer: HttpPeer, where: str) -> None:
    connection = document(peer.server)
    if where == "uri":
        uri = replace(connection.uri, user="me", password="pä:ss")
        connection = replace(connection, uri=uri)
    else:
        plain = {"type": "user-pass", "username": "me", "password": "pä:ss"}
        connection = replace(connection, credentials=plain)
    _, asked = await pushed(peer, Publication("POST:/in", b"", None), connection)
    scheme, _, value = asked.headers["authorization"].partition(" ")
    assert (scheme, base64.b64decode(value).decode()) == ("Basic", "me:pä:ss")


class TestTls:
    def _uri(self, server: HttpServer) -> Uri:
        return Uri("https", "localhost", server.port)

    async def test_certificates_need_not_be_validated(self, peer: HttpPeer) -> None:
        assert peer.tls is not None
        connection = replace(
            peer.connection(targets=("POST:/in",), uri=peer.tls.uri), validate_certificates=False
        )
        async with client(peer, connection) as one:
            assert (await push(one, Publication("POST:/in", b"", None))).status == 200

    async def test_the_name_in_the_certificate_counts(
        self, tmp_path: Path, authority: Authority
    ) -> None:
        files = authority.issue(tmp_path, "elsewhere.example")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        async with http_server(context) as server:
            connection = replace(document(server), uri=self._uri(server), ca=authority.pem)
            assert (await refusal(connection)).cause == "misconfigured"

    async def test_a_client_certificate_is_shown(
        self, peer: HttpPeer, tmp_path: Path, authority: Authority
    ) -> None:
        clients = Authority()
        cert, key = clients.pair("gateway")
        async with http_server(server_tls(tmp_path, authority, clients.pem)) as server:
            shown = {"type": "client-cert", "cert": cert, "key": key}
            connection = replace(
                document(server), uri=self._uri(server), ca=authority.pem, credentials=shown
            )
            async with client(peer, connection) as one:
                assert (await push(one, Publication("POST:/in", b"", None))).status == 200
            async with client(peer, replace(connection, credentials={})) as one:
                assert (await push(one, Publication("POST:/in", b"", None))).status == 500

    @pytest.mark.parametrize(
        "changes",
        [
            {"ca": "no PEM"},
            {"credentials": {"type": "client-cert", "cert": "no PEM", "key": "ö"}},
            {"credentials": {"type": "client-cert"}},
        ],
    )
    async def test_texts_that_are_no_certificates(
        self, server: HttpServer, changes: dict[str, Any]
    ) -> None:
        connection = replace(document(server), uri=self._uri(server), **changes)
        assert (await refusal(connection)).cause == "misconfigured"


class TestTokens:
    def _connection(self, server: HttpServer, **others: str) -> Connection:
        credentials = {
            "type": "oauth-client-credentials",
            "tokenEndpoint": f"http://127.0.0.1:{server.port}/token",
            "clientId": "me",
            "clientSecret": "s&cret",
            **others,
        }
        return replace(document(server), credentials=credentials)

    def _serve(self, server: HttpServer, lifetime: float = 300, refuse: str = "") -> None:
        """Tokens t1, t2 ...; /in refuses one of them."""

        async def answer(asked: Asked) -> Answer:
            if asked.target == "/token":
                token = f"t{len(server.of('/token'))}"
                body = {"access_token": token, "expires_in": lifetime, "token_type": "Bearer"}
                return Answer(200, json.dumps(body).encode(), "application/json")
            return Answer(401 if asked.headers["authorization"] == f"Bearer {refuse}" else 200)

        server.answers = answer

    async def test_requests_carry_a_token(self, peer: HttpPeer) -> None:
        self._serve(peer.server)
        connection = self._connection(peer.server, requestedScopes="a b")
        headers = {"Authorization": "Basic x"}
        async with client(peer, connection) as one:
            for _ in range(2):
                await push(one, Publication("POST:/in", b"", None, headers))
        (fetch,) = peer.server.of("/token")
        assert fetch.method == "POST"
        assert fetch.body == (
            b"grant_type=client_credentials&client_id=me&client_secret=s%26cret&scope=a+b"
        )
        carried = [asked.headers["authorization"] for asked in peer.server.of("/in")]
        assert carried == ["Bearer t1", "Bearer t1"]

    async def test_a_token_that_has_expired_is_replaced(self, peer: HttpPeer) -> None:
        self._serve(peer.server, lifetime=0)
        published, asked = await pushed(
            peer, Publication("POST:/in", b"", None), self._connection(peer.server)
        )
        assert published.status == 200
        assert asked.headers["authorization"] == "Bearer t2"

    async def test_a_token_that_is_refused_is_replaced(self, peer: HttpPeer) -> None:
        self._serve(peer.server, refuse="t1")
        async with client(peer, self._connection(peer.server)) as one:
            statuses = [
                (await push(one, Publication("POST:/in", b"", None))).status for _ in range(2)
            ]
        assert statuses == [401, 200]
        assert len(peer.server.of("/token")) == 2

    @pytest.mark.parametrize(
        ("answer", "cause"),
        [
            (Answer(401), "credentials"),
            (Answer(400), "credentials"),
            (Answer(500), "temporary"),
            (Answer(200, b"{}"), "temporary"),
            (Answer(200, b"x" * 100_000), "temporary"),
            (None, "temporary"),
        ],
    )
    async def test_no_token_is_to_be_had(
        self, server: HttpServer, answer: Answer | None, cause: str
    ) -> None:
        answering(server, answer)
        error = await refusal(self._connection(server))
        assert error.cause == cause
        assert "s&cret" not in str(error)

    async def test_no_token_later_is_answered_with_503(self, peer: HttpPeer) -> None:
        first = json.dumps({"access_token": "t1", "expires_in": 0}).encode()
        answering(peer.server, Answer(200, first), Answer(500))
        async with client(peer, self._connection(peer.server)) as one:
            published = await push(one, Publication("POST:/in", b"", None))
        assert published.status == 503
        assert peer.server.of("/in") == []

    async def test_an_endpoint_that_cannot_be_reached(self, server: HttpServer) -> None:
        nowhere = f"http://127.0.0.1:{free_port()}/token"
        error = await refusal(self._connection(server, tokenEndpoint=nowhere))
        assert error.cause == "temporary"
