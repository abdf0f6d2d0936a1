"""WebSocket sessions by token: their end, and its refresh by ``JWT-TOKEN`` (spec ws 1.7)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from tests.gateways import Gateway, basic, http, new_id, new_label, running, thing, ws_connect
from tests.issuers import Provider, bearer, claims, issuers, key, provider
from tests.servers import RedisServer, wait_for
from tests.vectors import load

SILENT_END = {"frames": [], "then": "close 1000, no error frame"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Provider]:
    with provider(key("one")) as one:
        yield one


@pytest.fixture(scope="module")
def guarded(
    issuer: Provider, store: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    one = Gateway(
        tmp_path_factory.mktemp("sessions"),
        redis_url=store.url,
        prefix="service",
        jwt_issuers=issuers(issuer),
        log_level="debug",
    )
    with running(one):
        yield one


def upgrade(gateway: Gateway, token: str, path: str = "/ws/2") -> Any:
    return ws_connect(gateway, path, user=None, headers=bearer(token))


def by_query(gateway: Gateway, token: str, **options: Any) -> Any:
    return ws_connect(gateway, f"/ws/2?access_token={quote(token)}", user=None, **options)


async def answers(connection: ClientConnection) -> bool:
    """Whether the session still carries out a text command."""
    await connection.send("STOP-SEND-EVENTS")
    return await asyncio.wait_for(connection.recv(), 10) == "STOP-SEND-EVENTS:ACK"


async def frames_until_the_end(connection: ClientConnection, deadline: float = 20) -> list[str]:
    """What comes until the gateway has closed; asserts that it closes in silence."""
    async with asyncio.timeout(deadline):
        frames = [str(frame) async for frame in connection]
    assert (connection.close_code, connection.close_reason) == (1000, "")
    return frames


def expected(vector: str) -> Any:
    (found,) = (one.values[1] for one in load("ws.session") if one.id == vector)
    return found


# ------------------------------------------------------------------------------ the upgrade


async def test_refused_upgrades(guarded: Gateway, issuer: Provider) -> None:
    good, old = issuer.token(key("one")), issuer.token(key("one"), lifetime=-60)
    both = f"/ws/2?access_token={good}"
    for path, headers, message in (
        ("/ws/2", bearer(old), "The JWT could not be verified."),
        (f"/ws/2?access_token={old}", {}, "The JWT could not be verified."),
        ("/ws/2?access_token=", {}, "The JWT could not be verified."),
        (both, bearer(good), "Multiple JWTs provided."),
        (both, bearer("x"), "Multiple JWTs provided."),
        ("/ws/2", {}, "No applicable authentication provider was found!"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            async with ws_connect(guarded, path, user=None, headers=headers):
                pass
        response = refused.value.response
        body = json.loads(response.body)
        assert (response.status_code, body["message"]) == (401, message)
        assert "Bearer" in response.headers["www-authenticate"]
    with pytest.raises(InvalidStatus) as refused:
        async with ws_connect(guarded, f"{both}&access_token={good}", user=None):
            pass
    assert refused.value.response.status_code == 400


async def test_a_token_in_the_query_counts_more_than_a_password(
    guarded: Gateway, issuer: Provider
) -> None:
    name = new_id()
    token = issuer.token(key("one"))
    async with http(guarded, None) as client:
        answer = await client.put(thing(name), json={}, headers=bearer(token))
        assert answer.status_code == 201
        browser = {"Authorization": basic("ditto")}  # it sends what it remembers, unasked
        async with by_query(guarded, token, headers=browser) as connection:
            await connection.send("START-SEND-EVENTS")
            assert await asyncio.wait_for(connection.recv(), 10) == "START-SEND-EVENTS:ACK"
            await client.put(thing(name, "/attributes"), json={}, headers=bearer(token))
            event = json.loads(await asyncio.wait_for(connection.recv(), 10))
            assert event["topic"].startswith(name.replace(":", "/"))


async def test_a_long_token_is_no_reason_to_refuse(guarded: Gateway, issuer: Provider) -> None:
    token = issuer.token(key("one"), padding="x" * 5000)
    async with by_query(guarded, token) as one, upgrade(guarded, token) as other:
        assert await answers(one)
        assert await answers(other)


async def test_a_head_that_the_library_does_not_take_is_answered(
    guarded: Gateway, issuer: Provider
) -> None:
    token = issuer.token(key("one"), padding="x" * 8000)
    many = {f"x-{number}": "1" for number in range(130)}
    chunked = {"transfer-encoding": "chunked"}
    for connecting, status in (
        (by_query(guarded, token), 431),
        (upgrade(guarded, token), 431),
        (ws_connect(guarded, headers=many), 431),
        (ws_connect(guarded, headers=chunked), 400),
    ):
        with pytest.raises(InvalidStatus) as refused:
            async with connecting:
                pass
        assert refused.value.response.status_code == status


# ------------------------------------------------------------------------------ the end


async def test_a_session_ends_in_silence_when_its_token_expires(
    guarded: Gateway, issuer: Provider
) -> None:
    label = new_label()
    said = claims(issuer.issuer, lifetime=4)
    async with upgrade(guarded, key("one").token(said), f"/ws/2?declared-acks={label}") as one:
        assert await answers(one)
        frames = await frames_until_the_end(one)
        assert {"frames": frames, "then": "close 1000, no error frame"} == SILENT_END
        assert time.time() >= said["exp"]
    assert expected("ws-session-011") == SILENT_END
    # Its labels are free.
    async with ws_connect(guarded, f"/ws/2?declared-acks={label}") as other:
        assert await answers(other)


async def test_a_session_by_query_parameter_has_no_end(guarded: Gateway, issuer: Provider) -> None:
    token = issuer.token(key("one"), lifetime=3)
    async with by_query(guarded, token) as endless, upgrade(guarded, token) as ending:
        assert await frames_until_the_end(ending) == []
        assert await answers(endless)
        # Unless it is given one.
        await refresh(endless, issuer.token(key("one"), lifetime=2))
        assert await frames_until_the_end(endless) == []


async def test_a_token_for_years_ends_nothing(guarded: Gateway, issuer: Provider) -> None:
    for lifetime in (101 * 86_400, 10**12, 10**30):
        async with upgrade(guarded, issuer.token(key("one"), lifetime=lifetime)) as connection:
            assert await answers(connection)


# ------------------------------------------------------------------------------ refresh


async def refresh(connection: ClientConnection, token: str) -> None:
    await connection.send(f"JWT-TOKEN?jwtToken={quote(token)}")


async def test_a_new_token_of_the_same_subjects_moves_the_end(
    guarded: Gateway, issuer: Provider
) -> None:
    token = issuer.token(key("one"), lifetime=3, groups=["a"])
    async with upgrade(guarded, token) as refreshed, upgrade(guarded, token) as left:
        await refresh(refreshed, issuer.token(key("one"), groups=["a"]))
        assert await frames_until_the_end(left) == []
        assert await answers(refreshed)


async def test_the_end_may_also_come_nearer(guarded: Gateway, issuer: Provider) -> None:
    async with upgrade(guarded, issuer.token(key("one"))) as connection:
        await refresh(connection, issuer.token(key("one"), lifetime=2))
        assert await frames_until_the_end(connection) == []


@pytest.mark.parametrize(
    "said",
    [{"sub": "bob"}, {"groups": ["a", "b", "c"]}, {"groups": ["b", "a"]}, {"groups": None}],
    ids=str,
)
async def test_other_subjects_end_the_session(
    guarded: Gateway, issuer: Provider, said: dict[str, Any]
) -> None:
    mine = {"groups": ["a", "b"]}
    async with upgrade(guarded, issuer.token(key("one"), **mine)) as connection:
        await refresh(connection, issuer.token(key("one"), **{**mine, **said}))
        frames = await frames_until_the_end(connection)
        assert {"frames": frames, "then": "close 1000, no error frame"} == SILENT_END
    assert expected("ws-session-012") == SILENT_END


async def test_a_bad_token_ends_the_session_and_nothing_follows_it(
    guarded: Gateway, issuer: Provider
) -> None:
    good = issuer.token(key("one"))
    for bad in (
        f"JWT-TOKEN?jwtToken={issuer.token(key('one'), lifetime=-60)}",
        f"JWT-TOKEN?jwtToken={good[:-6]}AAAAAA",
        f"JWT-TOKEN?jwtToken={key('one').token(claims('https://other.test'))}",
        "JWT-TOKEN?jwtToken=aaa.bbb.ccc",
        "JWT-TOKEN?jwtToken=",
        "JWT-TOKEN",
    ):
        async with upgrade(guarded, good) as connection:
            await connection.send(bad)
            await connection.send("START-SEND-EVENTS")
            await connection.send('{"topic":"nonsense"}')
            assert await frames_until_the_end(connection) == []


async def test_a_session_by_password_has_nothing_to_refresh(
    guarded: Gateway, issuer: Provider
) -> None:
    async with ws_connect(guarded) as connection:
        await refresh(connection, issuer.token(key("one")))
        assert await frames_until_the_end(connection) == []


async def test_while_the_issuer_is_down_the_end_stays(store: RedisServer, place: Path) -> None:
    with provider(key("one")) as one:
        alone = Gateway(place, redis_url=store.url, prefix="service", jwt_issuers=issuers(one))
        with running(alone):
            token = one.token(key("one"), lifetime=4)
            async with upgrade(alone, token) as connection:
                one.stop()
                await refresh(connection, key("three").token(claims(one.issuer)))
                assert await answers(connection)
                assert await frames_until_the_end(connection) == []
            await wait_for(lambda: len(alone.events("ws.token_not_checked")) == 1)


# ------------------------------------------------------------------------------ secrets


async def test_tokens_of_sessions_do_not_show_in_logs(guarded: Gateway, issuer: Provider) -> None:
    tokens = [issuer.token(key("one"), jti=f"secret-{number}") for number in range(3)]
    async with by_query(guarded, tokens[0]) as connection:
        assert await answers(connection)
        await refresh(connection, tokens[1])
        assert await answers(connection)
    async with upgrade(guarded, tokens[2]) as connection:
        assert await answers(connection)
    log = guarded.log
    assert "/ws/2" in log  # a library logs the request when debugging
    for token in tokens:
        assert token not in log
        assert token.rpartition(".")[2] not in log
