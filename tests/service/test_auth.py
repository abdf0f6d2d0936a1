"""Who may do what: credentials of requests and of the operator."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import bcrypt
import httpx
import pytest

from tests.gateways import Gateway, basic, check_error, http, new_id, running, thing
from tests.servers import RedisServer


def encoded(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic !!!!",
        "Basic " + encoded("ditto"),
        "Basic " + encoded("ditto:wrong"),
        "Basic " + encoded("nobody:ditto"),
        "Basic " + encoded(":"),
        "Basic " + encoded("ditto:"),
        "Basic " + encoded(b"\xff\xfe:x"),
        "Basic " + encoded("ditto:ditto") + "=",
        "Bearer " + encoded("ditto:ditto"),
        "Negotiate abc",
        encoded("ditto:ditto"),
        "Basic " + encoded("ditto:ditto\0"),
        "Basic " + encoded("Ditto:ditto"),
    ],
)
async def test_bad_credentials_get_401(gateway: Gateway, authorization: str | None) -> None:
    name = new_id()
    headers = {} if authorization is None else {"authorization": authorization}
    async with http(gateway, None) as client:
        for method, path in (("PUT", thing(name)), ("GET", thing(name)), ("GET", "/metrics")):
            answer = await client.request(method, path, json={}, headers=headers)
            check_error(answer, 401, "gateway:authentication.failed")
            assert answer.headers["www-authenticate"].startswith('Basic realm="')
            assert answer.headers["correlation-id"]
    async with http(gateway) as client:
        assert (await client.get(thing(name))).status_code == 404


@pytest.mark.parametrize("scheme", ["Basic", "basic", "BASIC"])
async def test_the_scheme_may_be_written_in_any_case(gateway: Gateway, scheme: str) -> None:
    async with http(gateway, None) as client:
        headers = {"authorization": f"{scheme} {encoded('ditto:ditto')}"}
        answer = await client.put(thing(new_id()), json={}, headers=headers)
        assert answer.status_code == 201


async def test_a_wrong_password_after_a_right_one_is_still_wrong(client: httpx.AsyncClient) -> None:
    assert (await client.put(thing(new_id()), json={})).status_code == 201
    wrong = {"authorization": basic("ditto", "wrong")}
    answer = await client.put(thing(new_id()), json={}, headers=wrong)
    check_error(answer, 401, "gateway:authentication.failed")


@pytest.fixture(scope="module")
def hashed(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway outside development, with a hashed user and a colon in a password."""
    secret = bcrypt.hashpw("gehéim".encode(), bcrypt.gensalt(4)).decode()
    gateway = Gateway(
        tmp_path_factory.mktemp("hashed"),
        redis_url=store.url,
        prefix="hashed",
        options=(),
        users=f"alice:{secret},bob:a:b c",
        operators="ops:letmein",
    )
    with running(gateway):
        yield gateway


@pytest.mark.parametrize(
    ("user", "password", "status"),
    [
        ("alice", "gehéim", 201),
        ("alice", "geheim", 401),
        ("alice", "gehéim" + "x" * 100, 401),
        ("bob", "a:b c", 201),
        ("bob", "a", 401),
        ("ops", "letmein", 201),
        ("ditto", "ditto", 401),
    ],
)
async def test_users_of_the_settings(
    hashed: Gateway, user: str, password: str, status: int
) -> None:
    headers = {"authorization": basic(user, password)}
    async with http(hashed, None) as client:
        for _ in range(2):  # the second time the header is known
            answer = await client.put(thing(new_id()), json={}, headers=headers)
            assert answer.status_code == status
            if status == 201:
                assert answer.headers["ditto-originator"] == f"nginx:{user}"
    assert "gehéim" not in hashed.log
    assert "letmein" not in hashed.log


async def test_only_operators_see_the_metrics(gateway: Gateway) -> None:
    async with http(gateway, "ditto") as client:
        check_error(await client.get("/metrics"), 403, "gateway:authorization.missing")
    async with http(gateway, "devops") as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_health_needs_no_credentials(gateway: Gateway) -> None:
    async with http(gateway, None) as client:
        for path in ("/health", "/health/live", "/health/ready"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["status"]) == (200, "UP")
        for path in ("/", "/openapi.json", "/docs", "/redoc"):
            assert (await client.get(path)).status_code in (401, 404)
