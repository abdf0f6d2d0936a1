"""JSON Web Tokens at a running gateway, with a provider whose keys change, vanish or lie."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import jwt
import pytest
from websockets.exceptions import InvalidStatus

from tests.gateways import (
    PASSWORDS,
    Gateway,
    Json,
    Subscriber,
    check_error,
    http,
    new_id,
    new_label,
    running,
    thing,
    ws_connect,
)
from tests.issuers import (
    Provider,
    SigningKey,
    bearer,
    certificate,
    claims,
    encoded,
    issuers,
    key,
    provider,
)
from tests.servers import RedisServer, wait_for
from tests.streams import until


@pytest.fixture(scope="module")
def issuer() -> Iterator[Provider]:
    with provider(key("one"), key("two", "ES256")) as one:
        yield one


@pytest.fixture(scope="module")
def guarded(
    issuer: Provider, store: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    one = Gateway(
        tmp_path_factory.mktemp("guarded"),
        redis_url=store.url,
        prefix="service",
        jwt_issuers=issuers(issuer),
        operator_subjects="acme:ops",
        access_log_sample="1.0",
        log_level="debug",
    )
    with running(one):
        yield one


def refused(answer: httpx.Response, says: str) -> None:
    body = check_error(answer, 401, "gateway:authentication.failed")
    assert body["message"] == "The JWT could not be verified."
    assert says in body["description"]
    assert answer.headers["www-authenticate"] == (
        'Basic realm="ackgate", charset="UTF-8", Bearer realm="ackgate", error="invalid_token"'
    )


# ------------------------------------------------------------------------------ what holds


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_token_makes_the_owner_of_a_thing(
    guarded: Gateway, issuer: Provider, scheme: str
) -> None:
    name = new_id()
    token = issuer.token(key("two", "ES256"), groups=["g1", "g2"])
    async with http(guarded, None) as client, http(guarded) as ditto:
        client.headers["authorization"] = f"{scheme} {token}"
        for status in (201, 204, 204):
            answer = await client.put(thing(name), json={"attributes": {"a": 1}})
            assert answer.status_code == status
            assert answer.headers["ditto-originator"] == "acme:alice"
        read = (await client.get(thing(name), params={"fields": "_policy"})).json()
        (entry,) = read["_policy"]["entries"].values()
        assert list(entry["subjects"]) == ["acme:alice"]
        who = (await client.get("/api/2/whoami")).json()
        assert who == {
            "defaultSubject": "acme:alice",
            "subjects": ["acme:alice", "acme:g1", "acme:g2"],
        }
        check_error(await ditto.get(thing(name)), 404, "things:thing.notfound")


async def test_any_of_the_subjects_may_be_the_one_that_the_policy_names(
    guarded: Gateway, issuer: Provider
) -> None:
    name = new_id()
    policy = {
        "entries": {
            "owner": {
                "subjects": {"nginx:ditto": {"type": "basic"}},
                "resources": {
                    f"{kind}:/": {"grant": ["READ", "WRITE"], "revoke": []}
                    for kind in ("thing", "policy", "message")
                },
            },
            "group": {
                "subjects": {"acme:readers": {"type": "token"}},
                "resources": {"thing:/": {"grant": ["READ"], "revoke": []}},
            },
        }
    }
    async with http(guarded) as ditto, http(guarded, None) as client:
        answer = await ditto.put(thing(name), json={"_policy": policy})
        assert answer.status_code == 201, answer.text
        reader = bearer(issuer.token(key("one"), groups=["readers"]))
        assert (await client.get(thing(name), headers=reader)).status_code == 200
        answer = await client.put(thing(name, "/attributes"), json={}, headers=reader)
        check_error(answer, 403, "things:attributes.notmodifiable")
        other = bearer(issuer.token(key("one")))
        check_error(await client.get(thing(name), headers=other), 404, "things:thing.notfound")


PATHS = (
    ("GET", "/api/2/things?ids=jwt:none", 200),
    ("GET", "/api/2/things/jwt:none", 404),
    ("PUT", "/api/2/policies/a:b/entries", 400),
    ("GET", "/api/2/acks/none", 404),
    ("GET", "/api/2/whoami", 200),
    ("POST", "/api/2/things/jwt:none/inbox/messages/x?timeout=0&response-required=false", 404),
    ("GET", "/", 200),
    ("GET", "/docs", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/metrics", 403),
)


@pytest.mark.parametrize(("method", "path", "status"), PATHS, ids=str)
async def test_every_endpoint_takes_a_token_and_refuses_a_bad_one(
    guarded: Gateway, issuer: Provider, method: str, path: str, status: int
) -> None:
    token = issuer.token(key("one"))
    body: Any = {} if method != "GET" else None
    async with http(guarded, None) as client:
        answer = await client.request(method, path, json=body, headers=bearer(token))
        assert answer.status_code == status, answer.text
        bad = bearer(token[:-6] + "AAAAAA")
        refused(await client.request(method, path, json=body, headers=bad), "signature")
        query = {"access_token": token}  # for WebSockets alone: URLs end up in logs
        answer = await client.request(method, path, json=body, params=query)
        check_error(answer, 401, "gateway:authentication.failed")


async def test_operators_by_token(guarded: Gateway, issuer: Provider) -> None:
    async with http(guarded, None) as client:
        for groups, status in ((["ops"], 200), (["dev"], 403)):
            token = issuer.token(key("one"), groups=groups)
            answer = await client.get("/metrics", headers=bearer(token))
            assert answer.status_code == status


async def test_passwords_work_beside_tokens(guarded: Gateway) -> None:
    async with http(guarded) as client, http(guarded, None) as nobody:
        assert (await client.get("/api/2/whoami")).json()["subjects"] == ["nginx:ditto"]
        answer = await nobody.get("/api/2/whoami")
        body = check_error(answer, 401, "gateway:authentication.failed")
        assert body["message"] == "No applicable authentication provider was found!"
        challenge = 'Basic realm="ackgate", charset="UTF-8", Bearer realm="ackgate"'
        assert answer.headers["www-authenticate"] == challenge


# ------------------------------------------------------------------------------ attacks


def forged(said: Json, algorithm: str) -> str:
    header = encoded({"alg": algorithm, "typ": "JWT", "kid": "one"})
    signed = f"{header}.{encoded(said)}"
    if algorithm == "none":
        return f"{signed}."
    return f"{signed}.{encoded(hmac.digest(key('one').pem, signed.encode(), 'sha256'))}"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"aud": "another"}, "somebody else"),
        ({"lifetime": -60}, "expired"),
        ({"exp": None}, "lacks the claim 'exp'"),
        ({"nbf": 2**40}, "not valid yet"),
        ({"sub": None}, "no subject"),
    ],
    ids=str,
)
async def test_claims_that_do_not_hold(
    guarded: Gateway, issuer: Provider, wrong: Json, says: str
) -> None:
    async with http(guarded, None) as client:
        token = issuer.token(key("one"), **wrong)
        refused(await client.put(thing(new_id()), json={}, headers=bearer(token)), says)


@pytest.mark.parametrize("lifetime", [-7, -3])
async def test_a_clock_may_be_some_seconds_off(
    guarded: Gateway, issuer: Provider, lifetime: int
) -> None:
    async with http(guarded, None) as client:
        token = issuer.token(key("one"), lifetime=lifetime)
        answer = await client.put(thing(new_id()), json={}, headers=bearer(token))
        assert answer.status_code == 201


async def test_forged_tokens(guarded: Gateway, issuer: Provider) -> None:
    evil = key("evil")
    with provider(evil) as theirs:
        said = claims(issuer.issuer)
        tokens = [
            (forged(said, "none"), "not allowed"),
            (forged(said, "HS256"), "not allowed"),
            (jwt.encode(said, evil.private, "RS256", headers={"kid": "one"}), "signature"),
            (evil.token(said, kid="one", jwk=evil.jwk()), "signature"),
            (evil.token(said, kid="one", jku=theirs.issuer + "/keys"), "signature"),
            (evil.token(said, kid="../../../etc/passwd"), "no such key"),
            (evil.token(said, kid="one' OR '1'='1"), "no such key"),
            ("x.y.z", "not a JWT"),
            (".", "not a JWT"),
        ]
        async with http(guarded, None) as client:
            for token, says in tokens:
                answer = await client.put(thing(new_id()), json={}, headers=bearer(token))
                refused(answer, says)
            stranger = bearer(theirs.token(evil))
            answer = await client.put(thing(new_id()), json={}, headers=stranger)
            body = check_error(answer, 401, "gateway:jwt.issuer.notsupported")
            assert body["message"] == f"The JWT issuer '{theirs.issuer}' is not supported."
        assert theirs.asked == []


async def test_two_authorization_headers_are_refused(guarded: Gateway, issuer: Provider) -> None:
    token = issuer.token(key("one"))
    async with http(guarded, None) as client:
        headers = [("authorization", f"Bearer {token}"), ("authorization", "Basic x")]
        answer = await client.get("/api/2/whoami", headers=headers)
        check_error(answer, 400, "gateway:duplicate.header.field")


# ------------------------------------------------------------------------------ time and keys


@pytest.mark.slow
async def test_an_expired_token_is_not_known_any_more_on_a_warm_connection(
    guarded: Gateway, issuer: Provider
) -> None:
    name = new_id()
    async with http(guarded, None) as client:
        client.headers.update(bearer(issuer.token(key("one"), lifetime=2)))
        for _ in range(5):  # the short way of known requesters
            answer = await client.put(thing(name), json={})
            assert answer.status_code in (201, 204)
        statuses: list[int] = []

        async def refused_now() -> bool:
            statuses.append((await client.put(thing(name), json={})).status_code)
            return statuses[-1] == 401

        await until(refused_now, 30)
        assert set(statuses) == {204, 401}


@pytest.fixture
def changing() -> Iterator[Provider]:
    with provider(key("one")) as one:
        yield one


@pytest.fixture
def another(changing: Provider, store: RedisServer, place: Path) -> Iterator[Gateway]:
    """A gateway of its own for a test whose provider changes."""
    one = Gateway(place, redis_url=store.url, prefix="service", jwt_issuers=issuers(changing))
    with running(one):
        yield one


async def whoami(gateway: Gateway, signer: SigningKey, issuer: Provider) -> int:
    async with http(gateway, None) as client:
        token = issuer.token(signer, jti=uuid4().hex)  # one that nobody has seen before
        return (await client.get("/api/2/whoami", headers=bearer(token))).status_code


async def test_keys_rotate(another: Gateway, changing: Provider) -> None:
    assert await whoami(another, key("one"), changing) == 200
    changing.keys = [key("three")]
    assert await whoami(another, key("three"), changing) == 200
    assert await whoami(another, key("one"), changing) == 401
    assert changing.fetches == 2


async def test_unknown_keys_cost_the_provider_one_request(
    another: Gateway, changing: Provider
) -> None:
    assert await whoami(another, key("one"), changing) == 200
    async with http(another, None) as client:
        for number in range(30):
            token = key("evil").token(claims(changing.issuer), kid=f"guess-{number}")
            refused(await client.get("/api/2/whoami", headers=bearer(token)), "no such key")
    assert changing.fetches == 2
    assert await whoami(another, key("one"), changing) == 200


async def test_a_provider_that_is_down(another: Gateway, changing: Provider) -> None:
    changing.stop()
    async with http(another, None) as client, http(another) as ditto:
        token = bearer(changing.token(key("one")))
        answer = await client.put(thing(new_id()), json={}, headers=token)
        body = check_error(answer, 503, "gateway:service.unavailable")
        assert answer.headers["retry-after"] == "1"
        assert changing.issuer in body["description"]
        with pytest.raises(InvalidStatus) as closed_door:
            async with ws_connect(another, user=None, headers=token):
                pass
        upgrade = closed_door.value.response
        assert (upgrade.status_code, upgrade.headers["retry-after"]) == (503, "1")
        # Others do not notice, and neither does readiness.
        assert (await ditto.put(thing(new_id()), json={})).status_code == 201
        assert another.health() == 200
        changing.start()

        async def taken() -> bool:
            return (await client.get("/api/2/whoami", headers=token)).status_code == 200

        await until(taken)
        changing.stop()
        # Keys are kept, and so are tokens that were checked.
        assert (await client.get("/api/2/whoami", headers=token)).status_code == 200
        assert await whoami(another, key("one"), changing) == 200
    assert "jwt.keys_unavailable" in another.log


# ------------------------------------------------------------------------------ outside development


async def test_keys_by_https_with_an_authority_of_ones_own(
    store: RedisServer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = certificate(place)
    with provider(key("one"), certificate=file) as issuer:

        def made() -> Gateway:
            return Gateway(
                place,
                redis_url=store.url,
                options=(),
                prefix="service",
                jwt_issuers=issuers(issuer),
            )

        strict = made()
        with running(strict):
            assert await whoami(strict, key("one"), issuer) == 503
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        trusting = made()
        with running(trusting):
            assert await whoami(trusting, key("one"), issuer) == 200
            async with http(trusting, None) as client:
                answer = await client.get("/api/2/whoami")
                # Nobody has a password here.
                assert answer.headers["www-authenticate"] == 'Bearer realm="ackgate"'


# ------------------------------------------------------------------------------ secrets


async def test_tokens_neither_travel_nor_show_in_logs(guarded: Gateway, issuer: Provider) -> None:
    label, name = new_label(), new_id()
    token = issuer.token(key("one"), jti="do-not-log-me")
    secret = token.rpartition(".")[2]
    async with http(guarded) as client, Subscriber.open(guarded, label) as subscriber:
        assert (await client.put(thing(name), json={})).status_code == 201
        await subscriber.event()
        headers = {
            "access_token": token,
            "x-ditto-pre-authenticated": "nginx:devops",
            "proxy-authorization": f"Bearer {token}",
            "x-mine": "travels",
        }
        query = {"access_token": token, "x-ditto-pre-authenticated": "nginx:devops"}
        answer = await client.put(
            thing(name, "/attributes"), json={"a": 1}, headers=headers, params=query
        )
        assert answer.status_code == 201, answer.text
        assert answer.headers["ditto-originator"] == "nginx:ditto"
        event = await subscriber.event(count=2)
        assert event["headers"]["x-mine"] == "travels"
        written = json.dumps(event)
        assert secret not in written
        assert "authorization" not in written
        assert "pre-authenticated" not in written
    async with http(guarded, None) as client:
        assert (await client.get("/api/2/whoami", headers=bearer(token))).status_code == 200
        refused(await client.get("/api/2/whoami", headers=bearer(token + "AAAA")), "signature")
    await wait_for(lambda: len(guarded.events("request")) > 3, what="lines of the access log")
    for hidden in (secret, token, PASSWORDS["ditto"] + ":"):
        assert hidden not in guarded.log
