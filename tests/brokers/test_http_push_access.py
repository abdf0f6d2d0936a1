"""HTTP push: what a document may say, passwords, certificates, tokens."""

from __future__ import annotations

import base64
import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connections.driver import Publication
from connections.http_push.driver import HttpPushDriver
from connections.model import Connection, Uri
from tests.brokers.authority import Authority
from tests.brokers.http_peer import (
    HttpPeer,
    answering,
    document,
    http_peer,
    push,
    pushed,
    server_tls,
)
from tests.brokers.http_server import Answer, Asked, HttpServer, http_server
from tests.brokers.peers import client, connection_of, refusal
from tests.servers import free_port

peer = pytest.fixture(http_peer)


@pytest.fixture
async def server(peer: HttpPeer) -> HttpServer:
    return peer.server


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
    error = await refusal(HttpPushDriver, replace(document(server), **changes))
    assert error.cause == "misconfigured"
    assert said in str(error)


async def test_a_target_without_a_method(server: HttpServer) -> None:
    uri = Uri("http", "127.0.0.1", server.port)
    error = await refusal(HttpPushDriver, connection_of("http-push", uri, (), ("/in",)))
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
            assert (await refusal(HttpPushDriver, connection)).cause == "misconfigured"

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
        assert (await refusal(HttpPushDriver, connection)).cause == "misconfigured"


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
        error = await refusal(HttpPushDriver, self._connection(server))
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
        error = await refusal(HttpPushDriver, self._connection(server, tokenEndpoint=nowhere))
        assert error.cause == "temporary"
