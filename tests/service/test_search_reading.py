"""A search shows nothing that one may not read, by whatever cursor (spec websocket-... 6.4)."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from acks.search_terms import NUMBER, TEXT
from tests.gateways import Gateway, check_error, http
from tests.searching import COUNT, SEARCH, ids, new_namespace, put_all, search
from tests.servers import RedisServer
from tests.service.policies import policy_of
from tests.service.searched import INDEXES, searched


@pytest.fixture(scope="module", params=INDEXES)
def gateway(
    request: pytest.FixtureRequest, store: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    with searched(request.param, tmp_path_factory.mktemp("searched"), store) as one:
        yield one


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(gateway) as client:
        yield client


async def test_what_may_not_be_read_is_not_found(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    space = new_namespace()
    value = {"attributes": {"open": 1, "secret": 1}}
    things = {
        "all": {**value, "_policy": policy_of(user2={"thing:/": "+"})},
        "part": {**value, "_policy": policy_of(user2={"thing:/attributes/open": "+"})},
        "none": {**value, "_policy": policy_of()},
    }
    await put_all(client, space, things)
    assert len(await ids(client, namespaces=space)) == 3
    async with http(gateway, "user2") as other:
        page = await search(other, namespaces=space)
        assert page["items"] == [
            {"thingId": f"{space}:all", "policyId": f"{space}:all", **value},
            {"thingId": f"{space}:part", "attributes": {"open": 1}},
        ]
        assert await ids(other, namespaces=space, filter="eq(attributes/secret,1)") == ["all"]
        assert await ids(other, namespaces=space, filter="exists(attributes/open)") == [
            "all", "part",
        ]  # fmt: skip
        counted = await other.get(
            COUNT, params={"namespaces": space, "filter": "exists(attributes/secret)"}
        )
        assert counted.json() == 1


async def test_what_may_not_be_read_does_not_sort(
    client: httpx.AsyncClient, gateway: Gateway
) -> None:
    space = new_namespace()
    policy = policy_of(user2={"thing:/attributes/open": "+"})
    secrets = {"a": "zz-9", "b": "zz-1", "c": "zz-5"}
    await put_all(
        client,
        space,
        {
            name: {"attributes": {"open": 1, "secret": secret}, "_policy": policy}
            for name, secret in secrets.items()
        },
    )
    option = "sort(+attributes/secret),size(1)"
    assert await ids(client, namespaces=space, option=option) == ["b"]
    own = await search(client, namespaces=space, option=option)
    async with http(gateway, "user2") as other:
        for sign in "+-":
            by_secret = f"sort({sign}attributes/secret)"
            assert await ids(other, namespaces=space, option=by_secret) == ["a", "b", "c"]
        page = await search(other, namespaces=space, option=option)
        assert b"zz-" not in unpacked(page["cursor"])
        # Another's cursor is a place that one might have named oneself: it opens nothing.
        found = await search(other, option=f"cursor({own['cursor']})")
        assert {str(item) for item in found["items"]} <= {
            str({"thingId": f"{space}:{name}", "attributes": {"open": 1}}) for name in secrets
        }


def unpacked(cursor: str) -> bytes:
    return zlib.decompress(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))


@pytest.mark.parametrize(
    ("sort", "key", "status"),
    [
        ("sort(+thingId)", [[TEXT, "' OR 1=1 --"]], 200),
        ("sort(+attributes/a,+thingId)", [[TEXT, "'); DROP TABLE thing; --"], [TEXT, "x:y"]], 200),
        ("sort(+attributes/a,+thingId)", [[NUMBER, "1e300"], [TEXT, "x:y"]], 200),
        ("sort(+attributes/a,+thingId)", [[], [TEXT, "x:y"]], 200),
        ("sort(+_revision,+thingId)", [[NUMBER, str(2**63 - 1)], [TEXT, "x:y"]], 200),
        ("sort(+_revision,+thingId)", [[NUMBER, str(2**63)], [TEXT, "x:y"]], 400),
        ("sort(+_revision,+thingId)", [[TEXT, "a"], [TEXT, "x:y"]], 400),
        ("sort(+attributes/a,+thingId)", [[NUMBER, "nan"], [TEXT, "x:y"]], 400),
        ("sort(+attributes/a,+thingId)", [[NUMBER, 1], [TEXT, "x:y"]], 400),
        ("sort(+attributes/a,+thingId)", [[99, "1"], [TEXT, "x:y"]], 400),
        ("sort(+attributes/a,+thingId)", [[TEXT, "\x00"], [TEXT, "x:y"]], 400),
        ("sort(+attributes/a,+thingId)", [[TEXT, "\ud800"], [TEXT, "x:y"]], 400),
        ("sort(+attributes/a,+thingId)", [[TEXT, ["a"]], [TEXT, "x:y"]], 400),
        ("sort(+attributes/a,+thingId)", ["a", [TEXT, "x:y"]], 400),
        ("sort(+thingId)", [None], 400),
        ("sort(+thingId)", [[]], 400),
        ("sort(+thingId)", [{"a": 1}], 400),
    ],
)
async def test_cursors_made_by_hand(
    client: httpx.AsyncClient, sort: str, key: list[Any], status: int
) -> None:
    held = json.dumps({"s": sort, "k": key}).encode()
    cursor = urlsafe_b64encode(zlib.compress(held)).rstrip(b"=").decode()
    answer = await client.get(SEARCH, params={"option": f"cursor({cursor})"})
    if status == 400:
        check_error(answer, 400, "thing-search:search.option.invalid")
    assert answer.status_code == status, answer.text
