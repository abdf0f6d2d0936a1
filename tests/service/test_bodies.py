"""Bad bodies, paths and methods: always an error of the catalogue, never a 5xx, nothing written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.gateways import (
    Gateway,
    RawHttp,
    basic,
    check_error,
    new_id,
    put_request,
    revision,
    thing,
)

JSON = {"content-type": "application/json"}


def nested(levels: int, value: str = "1") -> str:
    """JSON text of arrays in arrays."""
    return "[" * levels + value + "]" * levels


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'a':1}",
        b'{"a":1,}',
        b"NaN",
        b'{"attributes":{"a":NaN}}',
        b'{"attributes":{"a":Infinity}}',
        b'{"attributes":{"a":-Infinity}}',
        b'{"attributes":{"a":9223372036854775808}}',
        b'{"attributes":{"a":-9223372036854775809}}',
        b'{"attributes":{"a":%s}}' % (b"9" * 400),
        b'{"attributes":{"a":"\xff\xfe"}}',
        b'{"attributes":{"a":"\xed\xa0\x80"}}',
        b'{"attributes":{"a":"\\ud800"}}',
        b'{"attributes":{"a":"\x00"}}',
        b'{"attributes":{}} {}',
        nested(101).encode(),
        nested(5_000).encode(),
        nested(200_000).encode(),
        b'{"attributes":%s}' % (b'{"a":' * 300 + b"1" + b"}" * 300),
    ],
)
async def test_what_is_no_json_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    name = new_id()
    for path in ("", "/attributes"):
        answer = await client.put(thing(name, path), content=body, headers=JSON)
        check_error(answer, 400, "json.invalid")
    assert await revision(client, name) == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("null", "json.format.invalid"),
        ("[]", "json.format.invalid"),
        ('"text"', "json.format.invalid"),
        ("1", "json.format.invalid"),
        ('{"attributes":1}', "json.format.invalid"),
        ('{"features":[]}', "json.format.invalid"),
        ('{"features":{"f":1}}', "json.format.invalid"),
        ('{"policyId":1}', "json.format.invalid"),
        ('{"policyId":"none"}', "json.format.invalid"),
        ('{"definition":"a:b"}', "json.format.invalid"),
        ('{"thingId":"other:thing"}', "things:id.notsettable"),
        ('{"thingId":1}', "things:id.notsettable"),
        ('{"attributes":{"/a":1}}', "json.pointer.invalid"),
        ('{"attributes":{"":1}}', "json.pointer.invalid"),
        ('{"attributes":{"b":[{"\\/a":1}]}}', "json.pointer.invalid"),
    ],
)
async def test_json_of_the_wrong_shape_is_refused(
    client: httpx.AsyncClient, body: str, code: str
) -> None:
    name = new_id()
    check_error(await client.put(thing(name), content=body, headers=JSON), 400, code)
    assert await revision(client, name) == 0


async def test_attributes_must_be_an_object_or_null(client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    for body in ("1", "[]", '"a"'):
        answer = await client.put(thing(name, "/attributes"), content=body, headers=JSON)
        check_error(answer, 400, "json.format.invalid")
    assert (await client.put(thing(name, "/attributes"), content="null", headers=JSON)).is_success
    assert (await client.put(thing(name, "/attributes/a"), content="null", headers=JSON)).is_success
    assert (await client.get(thing(name))).json()["attributes"] == {"a": None}


@pytest.mark.parametrize(
    "value",
    [
        9223372036854775807,
        -9223372036854775808,
        1.5e300,
        5e-324,
        0.1,
        -0.0,
        10**15,
        "ü\u0000\U0001f600",
    ],
)
async def test_extreme_values_are_kept(client: httpx.AsyncClient, value: Any) -> None:
    name = new_id()
    await client.put(thing(name), json={"attributes": {"a": value}})
    found = (await client.get(thing(name))).json()["attributes"]["a"]
    assert (found, type(found)) == (value, type(value))


async def test_as_deep_as_allowed_is_stored_and_answered(client: httpx.AsyncClient) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    path = "/attributes" + "/a" * 99
    answer = await client.put(
        thing(name, path),
        content=nested(100),
        headers=JSON,
        params={"requested-acks": "twin-persisted,nobody", "timeout": "50ms"},
    )
    assert answer.status_code == 424
    assert answer.json()["twin-persisted"]["payload"] == json.loads(nested(100))
    assert (await client.get(thing(name))).status_code == 200
    too_deep = await client.put(thing(name, "/attributes" + "/a" * 100), content="1", headers=JSON)
    check_error(too_deep, 400, "json.pointer.invalid")
    assert await revision(client, name) == 2


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 201),
        ("application/json; charset=utf-8", 201),
        ("APPLICATION/JSON", 201),
        ("application/octet-stream", 201),
        (None, 201),
        ("text/plain", 415),
        ("application/xml", 415),
        ("application/merge-patch+json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("nonsense", 415),
    ],
)
async def test_content_types(
    client: httpx.AsyncClient, content_type: str | None, status: int
) -> None:
    name = new_id()
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await client.put(thing(name), content="{}", headers=headers)
    if status == 415:
        check_error(answer, 415, "mediatype.unsupported")
    assert answer.status_code == status
    assert await revision(client, name) == (1 if status == 201 else 0)


async def test_bodies_that_are_too_large(client: httpx.AsyncClient) -> None:
    name = new_id()
    large = b'{"attributes":{"a":"' + b"x" * (1 << 20) + b'"}}'

    async def in_parts() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 65_536):
            yield large[start : start + 65_536]

    for content in (large, in_parts()):  # with a content-length, and chunked
        answer = await client.put(thing(name), content=content, headers=JSON)
        check_error(answer, 413, "request.toolarge")
    assert await revision(client, name) == 0


@pytest.mark.parametrize("known", [False, True], ids=["first request", "known credentials"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_the_connection_after_a_too_large_body_is_closed_or_usable(
    gateway: Gateway, known: bool, chunked: bool
) -> None:
    large = b"x" * ((1 << 20) + 1)
    name = new_id()
    async with RawHttp.open(gateway) as raw:
        if known:
            await raw.send(put_request(name, b"{}"))
            assert (await raw.answer())[0] == 201
        if chunked:
            head = put_request(name, b"").replace(
                b"Content-Length: 0", b"Transfer-Encoding: chunked"
            )
            request = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(large), large)
        else:
            request = put_request(name, large)
        raw.writer.write(request)
        status, headers, body = await raw.answer()
        assert (status, json.loads(body)["error"]) == (413, "request.toolarge")
        if headers.get("connection") == "close":
            return
        await raw.send(put_request(new_id(), b"{}"))
        assert (await raw.answer())[0] == 201


async def test_things_that_are_too_large(client: httpx.AsyncClient) -> None:
    name = new_id()
    most = 102_400
    frame = json.dumps({"thingId": name, "policyId": name, "attributes": {"a": ""}})
    room = most - len(frame.replace(" ", ""))
    body = check_error(
        await client.put(thing(name), json={"attributes": {"a": "x" * (room + 1)}}),
        413,
        "things:thing.toolarge",
    )
    assert body["message"] == (
        "The size of '102401' B exceeds the maximal allowed Thing size of '102400' B."
    )
    assert await revision(client, name) == 0
    assert (await client.put(thing(name), json={"attributes": {"a": "x" * room}})).is_success
    over = await client.put(thing(name, "/attributes/b"), json=1)
    check_error(over, 413, "things:thing.toolarge")
    assert await revision(client, name) == 1


@pytest.mark.parametrize(
    "thing_id",
    [
        "noname",
        "1a:b",
        "a b:c",
        "a:",
        "a..b:c",
        "a:b%00",
        "a:" + "x" * 255,
        "a:b%2Fc",
        "%FF:b",
        ":",
    ],
)
async def test_bad_thing_ids(client: httpx.AsyncClient, thing_id: str) -> None:
    for method in ("GET", "PUT"):
        answer = await client.request(method, f"/api/2/things/{thing_id}", json={})
        check_error(answer, 400, "things:id.invalid")


@pytest.mark.parametrize(
    "thing_id", ["a:b", ":b", "a.b-c.d:e f", "a:日本", "a:x?y#z", "a:" + "x" * 254]
)
async def test_unusual_thing_ids(client: httpx.AsyncClient, thing_id: str) -> None:
    answer = await client.put(thing(thing_id), json={})
    assert answer.status_code in (201, 204)
    assert (await client.get(thing(thing_id))).json()["thingId"] == thing_id


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/nothing", "gateway:resource.notfound"),
        ("/api/2/nothing", "gateway:resource.notfound"),
        ("/api/2/things/a:b/nothing", "gateway:resource.notfound"),
        ("/api/2/things/a:b//attributes", "gateway:resource.notfound"),
        ("/api/1/things/a:b", "api.version.notsupported"),
        ("/api/3/things/a:b", "api.version.notsupported"),
        ("//", "gateway:resource.notfound"),
    ],
)
async def test_unknown_paths(client: httpx.AsyncClient, path: str, code: str) -> None:
    for method in ("GET", "PUT"):
        # httpx would tidy the path up
        url = httpx.URL(client.base_url, raw_path=path.encode())
        check_error(await client.request(method, url, json={}), 404, code)


@pytest.mark.parametrize(
    "path",
    [
        "/api%2F2/things/NAME",
        "/api/2%2Fthings/NAME",
        "/api/2/things%2FNAME",
        "/api/2/%74hings/NAME",
        "/api%2F2/things/x/NAME/inbox/messages/s",
        "/api%2F2/things",
        "/api%2F2/policies/NAME",
        "/api/2/policies%2FNAME",
        "/api%2F2/acks/a",
    ],
)
async def test_the_fixed_part_of_a_path_is_taken_as_sent(
    client: httpx.AsyncClient, path: str
) -> None:
    """An encoded slash is part of a name."""
    name = new_id()
    await client.put(thing(name), json={})
    for method in ("GET", "PUT", "POST", "DELETE"):
        url = httpx.URL(client.base_url, raw_path=path.replace("NAME", name).encode())
        answer = await client.request(method, url, json={})
        check_error(answer, 404, "gateway:resource.notfound")
    assert await revision(client, name) == 1


@pytest.mark.parametrize(
    "part",
    [
        "/attributes/%2Fslash",
        "/attributes/~1slash",
        "/attributes/a/%2Fb",
        "/features/%2Ff",
        "/features/f/properties/~1p",
    ],
)
async def test_keys_in_a_path_are_those_that_bodies_may_have(
    client: httpx.AsyncClient, part: str
) -> None:
    name = new_id()
    await client.put(thing(name), json={})
    url = httpx.URL(client.base_url, raw_path=(thing(name) + part).encode())
    for method in ("PUT", "GET", "DELETE"):
        answer = await client.request(method, url, json={})
        check_error(answer, 400, "json.pointer.invalid")
    in_body = await client.put(thing(name), json={"attributes": {"/slash": 1}})
    check_error(in_body, 400, "json.pointer.invalid")
    assert await revision(client, name) == 1


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "HEAD"])
async def test_wrong_methods(client: httpx.AsyncClient, method: str) -> None:
    name = new_id()
    for path in (thing(name), thing(name, "/attributes"), thing(name, "/attributes/a"), "/metrics"):
        answer = await client.request(method, path)
        if method == "HEAD":
            assert (answer.status_code, answer.content) == (405, b"")
        else:
            check_error(answer, 405, "gateway:method.notallowed")
    assert await revision(client, name) == 0
    for elsewhere in ("/api/2/things", thing(name, "/policyId")):
        answer = await client.request("DELETE", elsewhere)
        check_error(answer, 405, "gateway:method.notallowed")


async def test_nothing_of_this_file_was_a_5xx(gateway: Gateway) -> None:
    """The gateway logs its 5xx answers; this session-wide gateway must not have had one."""
    assert gateway.events("request.failed") == []


async def test_garbage_instead_of_http(gateway: Gateway) -> None:
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n"):
        async with RawHttp.open(gateway) as raw:
            await raw.send(garbage)
            assert (await raw.answer())[0] == 400
            assert await raw.at_end()
    assert gateway.health() == 200
    assert basic("ditto") not in gateway.log
