"""The three headers together, their defaults, and every way to get one wrong."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.gateways import (
    Gateway,
    RawHttp,
    Subscriber,
    ack_all,
    basic,
    check_error,
    http,
    new_id,
    new_label,
    put_request,
    revision,
    running,
    thing,
)
from tests.servers import RedisServer

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.parametrize(
    ("required", "acks", "timeout", "status"),
    [
        ("false", "", "0", 202),
        ("false", "", "5s", 202),
        ("false", "LABELS", "0", 400),
        ("false", "LABELS", "5s", 202),
        ("true", "", "0", 400),
        ("true", "", "5s", 201),
        ("true", "LABELS", "0", 400),
        ("true", "LABELS", "5s", 200),
    ],
)
async def test_the_eight_rows(
    client: httpx.AsyncClient,
    gateway: Gateway,
    required: str,
    acks: str,
    timeout: str,
    status: int,
) -> None:
    name, label = new_id(), new_label()
    headers = {
        "response-required": required,
        "requested-acks": acks.replace("LABELS", f"twin-persisted,{label}"),
        "timeout": timeout,
    }
    async with Subscriber.open(gateway, label, ack=ack_all):
        answer = await client.put(thing(name), json={}, headers=headers)
    assert answer.status_code == status
    if status == 400:
        assert check_error(answer, 400, "header.invalid")["invalidHeaderKey"] == "timeout"
        assert await revision(client, name) == 0
    elif status == 202:
        assert answer.content == b""
        assert answer.headers["content-length"] == "0"
    elif status == 200:
        assert set(answer.json()) == {"twin-persisted", label}
    else:
        assert answer.json() == {"thingId": name, "policyId": name}


DEFAULTS = [  # what is given -> the status of creating a thing
    ({}, 201),
    ({"timeout": "5s"}, 201),
    ({"timeout": "0"}, 202),
    ({"timeout": "0ms"}, 202),
    ({"response-required": "true"}, 201),
    ({"response-required": "false"}, 202),
    ({"response-required": "true", "timeout": "0"}, 400),
    ({"response-required": "false", "timeout": "0"}, 202),
    ({"requested-acks": "twin-persisted"}, 201),
    ({"requested-acks": '["twin-persisted","twin-persisted"]'}, 201),
    ({"requested-acks": "twin-persisted", "timeout": "0"}, 400),
    ({"requested-acks": "twin-persisted", "response-required": "false"}, 202),
    ({"requested-acks": "", "response-required": "true"}, 201),
    ({"requested-acks": "live-response", "response-required": "true"}, 201),
]
EMPTY: list[dict[str, str]] = [{"requested-acks": ""}, {"requested-acks": "[]"}]


@pytest.mark.parametrize(("given", "status"), [*DEFAULTS, *((given, 202) for given in EMPTY)])
async def test_default_table(client: httpx.AsyncClient, given: dict[str, str], status: int) -> None:
    for kind in ("headers", "params"):
        options: dict[str, Any] = {kind: given}
        answer = await client.put(thing(new_id()), json={}, **options)
        assert answer.status_code == status, answer.text


@pytest.fixture(scope="module")
def ditto(store: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway with the defaults of Ditto's code."""
    place = tmp_path_factory.mktemp("ditto")
    one = Gateway(place, redis_url=store.url, prefix="ditto", header_defaults="ditto")
    with running(one):
        yield one


@pytest.fixture
async def ditto_client(ditto: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(ditto) as client:
        yield client


@pytest.mark.parametrize(("given", "status"), [*DEFAULTS, *((given, 201) for given in EMPTY)])
async def test_default_table_of_dittos_code(
    ditto_client: httpx.AsyncClient, given: dict[str, str], status: int
) -> None:
    answer = await ditto_client.put(thing(new_id()), json={}, headers=given)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("timeout", ["60s", "60", "60000ms", "1m", "+5s", "5", "250ms"])
async def test_good_timeouts_are_repeated_as_given(client: httpx.AsyncClient, timeout: str) -> None:
    answer = await client.put(thing(new_id()), json={}, headers={"timeout": timeout})
    assert (answer.status_code, answer.headers["timeout"]) == (201, timeout)


MALFORMED = [
    ({"timeout": "61s"}, "gateway:timeout.invalid", None),
    ({"timeout": "60001ms"}, "gateway:timeout.invalid", None),
    ({"timeout": "1y"}, "gateway:timeout.invalid", None),
    ({"timeout": "-15s"}, "timeout.invalid", None),
    ({"timeout": "1a"}, "timeout.invalid", None),
    ({"timeout": "1.5s"}, "timeout.invalid", None),
    ({"timeout": "5 s"}, "timeout.invalid", None),
    ({"timeout": ""}, "timeout.invalid", None),
    ({"timeout": "99999999999999999999999"}, "timeout.invalid", None),
    ({"response-required": "5"}, "header.invalid", "response-required"),
    ({"response-required": "TRUE"}, "header.invalid", "response-required"),
    ({"response-required": ""}, "header.invalid", "response-required"),
    ({"requested-acks": "a"}, "header.invalid", "requested-acks"),
    ({"requested-acks": "twin-persisted, ,abc"}, "header.invalid", "requested-acks"),
    ({"requested-acks": "[abc,def]"}, "header.invalid", "requested-acks"),
    ({"requested-acks": "[1]"}, "header.invalid", "requested-acks"),
    ({"requested-acks": '["abc",null]'}, "header.invalid", "requested-acks"),
    ({"requested-acks": "x" * 166}, "header.invalid", "requested-acks"),
    ({"requested-acks": "a b c"}, "header.invalid", "requested-acks"),
    ({"channel": "any"}, "header.invalid", "channel"),
    ({"dry-run": "true"}, "header.invalid", "dry-run"),
    ({"if-match": "rev:1"}, "header.invalid", "if-match"),
    ({"if-none-match": 'w/"a"'}, "header.invalid", "if-none-match"),
    ({"if-equal": "no"}, "header.invalid", "if-equal"),
]


@pytest.mark.parametrize(("headers", "code", "key"), MALFORMED)
async def test_malformed_headers_are_refused_and_nothing_is_written(
    client: httpx.AsyncClient, headers: dict[str, str], code: str, key: str | None
) -> None:
    name = new_id()
    body = check_error(await client.put(thing(name), json={}, headers=headers), 400, code)
    assert body.get("invalidHeaderKey") == key
    assert await revision(client, name) == 0


async def test_texts_of_timeout_errors(client: httpx.AsyncClient) -> None:
    async def text(**headers: str) -> tuple[str, str]:
        body = (await client.put(thing(new_id()), json={}, headers=headers)).json()
        return body["message"], body["description"]

    assert await text(timeout="61s") == (
        "The timeout <61,000ms> is not inside its allowed bounds <0ms - 60,000ms>",
        "Choose a timeout inside the bounds.",
    )
    assert await text(timeout="-15s") == (
        "The duration must not be negative but was <-15s>!",
        "Please choose a valid timeout.",
    )
    assert await text(timeout="1a") == (
        'For input string: "1a"',
        "Please choose a valid timeout.",
    )


async def test_header_and_query_parameter(client: httpx.AsyncClient) -> None:
    name = new_id()
    same = await client.put(
        thing(name), json={}, params={"timeout": "5s"}, headers={"timeout": "5s"}
    )
    assert same.status_code == 201
    differ = await client.put(
        thing(name), json={}, params={"timeout": "5s"}, headers={"timeout": "6s"}
    )
    body = check_error(differ, 400, "gateway:duplicate.header.field")
    assert body["message"] == (
        "<timeout> was provided as header as well as query parameter with divergent values!"
    )
    twice = await client.put(f"{thing(name)}?timeout=5s&timeout=6s", json={})
    check_error(twice, 400, "gateway:duplicate.header.field")
    assert await revision(client, name) == 1


async def test_the_same_header_twice_is_refused(gateway: Gateway) -> None:
    async with RawHttp.open(gateway) as raw:
        for line in ("timeout: 5s", "correlation-id: a", "requested-acks: twin-persisted"):
            await raw.send(put_request(new_id(), b"{}", line, line))
            status, headers, body = await raw.answer()
            assert (status, headers["content-type"]) == (400, "application/json")
            assert b"gateway:duplicate.header.field" in body


async def test_a_header_that_travels_twice_is_refused_too(gateway: Gateway) -> None:
    async with RawHttp.open(gateway) as raw:
        await raw.send(put_request(new_id(), b"{}", "x-mine: 1", "X-Mine: 2"))
        status, _, body = await raw.answer()
        assert status == 400
        assert json.loads(body)["error"] == "gateway:duplicate.header.field"
        assert "<x-mine>" in json.loads(body)["message"]
        # What stays here may come twice: proxies add their own.
        await raw.send(put_request(new_id(), b"{}", "x-forwarded-for: a", "x-forwarded-for: b"))
        assert (await raw.answer())[0] == 201


async def test_more_than_one_host_is_refused(gateway: Gateway, client: httpx.AsyncClient) -> None:
    name = new_id()
    async with RawHttp.open(gateway) as raw:
        for other in ("other.test", "gateway.test"):
            await raw.send(put_request(name, b"{}", f"Host: {other}"))
            status, _, body = await raw.answer()
            assert status == 400
            assert b"gateway:duplicate.header.field" in body
    assert await revision(client, name) == 0


async def test_correlation_ids(client: httpx.AsyncClient) -> None:
    async def given(**headers: str) -> str:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await client.put(thing(new_id()), json={}, headers=sent)
        assert answer.status_code == 201
        return str(answer.headers["correlation-id"])

    assert await given(correlation_id="mine 1") == "mine 1"
    assert await given(x_correlation_id="x", correlation_id="c") == "x"
    first, second = await given(), await given()
    assert UUID.fullmatch(first)
    assert UUID.fullmatch(second)
    assert first != second
    by_query = await client.put(thing(new_id()), json={}, params={"correlation-id": "from-query"})
    assert by_query.headers["correlation-id"] == "from-query"
    unauthorized = await client.get(
        thing(new_id()), headers={"authorization": "Basic x", "correlation-id": "e"}
    )
    assert (unauthorized.status_code, unauthorized.headers["correlation-id"]) == (401, "e")


@pytest.mark.parametrize("bad", ["a\r\nx-evil: 1", "a\nb", "a\x00b", "a\x7fb", "a\x85b"])
async def test_control_characters_in_a_correlation_id_are_refused(
    client: httpx.AsyncClient, bad: str
) -> None:
    for path in (thing(new_id()), "/health"):
        answer = await client.put(path, json={}, params={"correlation-id": bad})
        assert "x-evil" not in answer.headers
        if path != "/health":
            body = check_error(answer, 400, "header.invalid")
            assert body["invalidHeaderKey"] == "correlation-id"
            assert UUID.fullmatch(answer.headers["correlation-id"])


@pytest.mark.parametrize("bad", ["\u65e5\u672c", "a\u20acb", "a\u2028b", " a", "a ", "\U0001f600"])
async def test_correlation_ids_that_a_header_cannot_repeat_are_refused(
    client: httpx.AsyncClient, bad: str
) -> None:
    name = new_id()
    answer = await client.put(thing(name), json={}, params={"correlation-id": bad})
    body = check_error(answer, 400, "header.invalid")
    assert body["invalidHeaderKey"] == "correlation-id"
    assert UUID.fullmatch(answer.headers["correlation-id"])
    assert await revision(client, name) == 0


@pytest.mark.parametrize("bad", [b"a\x85b", b"\xe6\x97\xa5", b"a\tb"])
async def test_bad_correlation_ids_in_headers_are_not_repeated(
    client: httpx.AsyncClient, bad: bytes
) -> None:
    name = new_id()
    for header in (b"correlation-id", b"x-correlation-id"):
        answer = await client.put(thing(name), json={}, headers=[(header, bad)])
        check_error(answer, 400, "header.invalid")
        assert UUID.fullmatch(answer.headers["correlation-id"])
    assert await revision(client, name) == 0


async def test_latin_1_correlation_ids_are_repeated(client: httpx.AsyncClient) -> None:
    for sent in (
        {"params": {"correlation-id": "gr\u00fc\u00df"}},
        {"headers": [(b"correlation-id", b"gr\xfc\xdf")]},
    ):
        answer = await client.put(thing(new_id()), json={}, **sent)
        assert (b"correlation-id", b"gr\xfc\xdf") in answer.headers.raw


async def test_too_many_header_characters_are_refused(client: httpx.AsyncClient) -> None:
    name = new_id()
    for headers in ({"x-long": "x" * 5_200}, {f"x-{n}": "y" * 100 for n in range(60)}):
        answer = await client.put(thing(name), json={}, headers=headers)
        check_error(answer, 431, "headers.too.large")
    answer = await client.get(thing(name), headers={"x-long": "x" * 60_000})
    check_error(answer, 431, "headers.too.large")
    assert await revision(client, name) == 0


async def test_get_refuses_what_makes_no_sense_for_it(client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    refused = await client.get(thing(name), headers={"response-required": "false"})
    check_error(refused, 400, "command.headers.invalid")
    zero = await client.get(thing(name), params={"timeout": "0"})
    check_error(zero, 400, "header.invalid")
    check_error(await client.get(thing(name), params={"timeout": "1a"}), 400, "timeout.invalid")


async def test_which_headers_travel_with_the_event(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    headers = {
        "x-mine": "1",
        "traceparent": "00-1-2-01",
        "user-agent": "tests",
        "cookie": "secret",
        "ditto-originator": "forged",
        "etag": "forged",
    }
    async with Subscriber.open(gateway) as subscriber:
        await client.put(thing(new_id()), json={}, headers=headers)
        shown = (await subscriber.event())["headers"]
    assert {key: shown.get(key) for key in headers} == {
        "x-mine": "1",
        "traceparent": "00-1-2-01",
        "user-agent": None,
        "cookie": None,
        "ditto-originator": "nginx:ditto",
        "etag": None,
    }
    assert basic("ditto") not in str(shown)
