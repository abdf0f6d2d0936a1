"""docs/acknowledgements.md says what a gateway does: every example is run."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.subscribe import Wanted, subscribe
from tests.gateways import ROOT, Gateway, http
from tests.servers import wait_for

PAGE = ROOT / "docs" / "acknowledgements.md"
BASE = "http://127.0.0.1:8080"
THING = f"{BASE}/api/2/things/org.example:lamp-2"
ANY = "..."
FUNCTIONS = {
    "req": ["-H", "content-type: application/json"],
    "patch": ["-X", "PATCH", "-H", "content-type: application/merge-patch+json"],
}


def examples() -> list[tuple[str, str, int]]:
    """(command line, expected body, expected status) of every example, in their order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, rest = part.partition("\n")
            *body, status = rest.strip().split("\n")
            found.append((line, "\n".join(body), int(status)))
    return found


def request_of(line: str, url: str) -> httpx.Request:
    """The request that the page's functions would send with curl."""
    words = shlex.split(line.replace("$T", THING), comments=True)
    words = FUNCTIONS[words[0]] + words[1:]
    method, headers, content, target = "GET", dict[str, str](), None, ""
    while words:
        word = words.pop(0)
        if word == "-X":
            method = words.pop(0)
        elif word == "-H":
            name, _, value = words.pop(0).partition(": ")
            assert name not in headers, "curl would send it twice"
            headers[name] = value
        elif word == "-d":
            content = words.pop(0)
        else:
            target = word
    assert target.startswith(BASE)
    return httpx.Request(method, target.replace(BASE, url), headers=headers, content=content)


def differs(expected: Any, found: Any, where: str = "$") -> str | None:
    """Where ``found`` is not what the page says, None if nowhere."""
    if expected == ANY:
        return None
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(expected) != list(found):
            return f"{where}: {list(expected)} != {list(found)}"
        parts = (differs(expected[name], found[name], f"{where}.{name}") for name in expected)
        return next(filter(None, parts), None)
    return None if expected == found else f"{where}: {expected!r} != {found!r}"


@asynccontextmanager
async def reader(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A reader who has followed the page: the subscribers listen."""
    lines: list[str] = []
    first = Wanted(gateway.url, "ditto", "ditto", ("my:ack",), 200, {"done": True}, messages=True)
    worker = replace(first, labels=("my:work",), group="workers", messages=False)
    wanted = (first, *(replace(worker, payload={"by": name}) for name in ("one", "two")))
    listening = [asyncio.create_task(subscribe(one, lines.append)) for one in wanted]
    try:
        await wait_for(
            lambda: len(lines) == len(wanted) or any(task.done() for task in listening),
            what="the subscribers listen",
        )
        async with http(gateway) as client:
            yield client
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def finished(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """The answer of an accepted request's resource once it is done: readers are slower than us."""
    async with asyncio.timeout(10.0):
        while (answer := await client.send(request)).json().get("state") == "pending":
            pass
    return answer


async def test_every_example_of_the_page_is_true(gateway: Gateway) -> None:
    page = examples()
    assert len(page) > 25
    wrong = []
    async with reader(gateway) as client:
        for line, body, status in page:
            request = request_of(line, gateway.url)
            request.headers["authorization"] = client.headers["authorization"]
            answer = await client.send(request)
            if "/acks/" in request.url.path:
                answer = await finished(client, request)
            expected = json.loads(body) if body else None
            found = answer.json() if answer.content else None
            problem = differs(expected, found)
            if answer.status_code != status or problem:
                wrong.append(f"{line}\n    {answer.status_code} {problem}\n    {answer.text}")
    assert not wrong, "\n".join(wrong)


def test_the_functions_are_those_of_the_page() -> None:
    for name, words in FUNCTIONS.items():
        definition = re.search(rf"^{name}\(\) .*$", PAGE.read_text(), re.MULTILINE)
        assert definition is not None
        for word in words:
            assert word in definition[0]


@pytest.mark.parametrize("label", ["twin-persisted", "live-response", "search-persisted"])
def test_the_page_explains_every_built_in_label(label: str) -> None:
    assert f"| `{label}` |" in PAGE.read_text()
