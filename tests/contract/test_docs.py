"""The page ``/docs``: all of it comes from the gateway, and it may load nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.gateways import Gateway, check_error, http

ASSETS = ("/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/start.js")


class References(HTMLParser):
    """Collects what a page loads, and whether it holds code or style of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("link", "script", "img", "iframe"):
            address = given.get("href") or given.get("src")
            if address:
                self.loaded.append(address)
            else:
                self.inline.append(tag)
        self.inline.extend(name for name in given if name == "style" or name.startswith("on"))
        if tag in ("style", "base"):
            self.inline.append(tag)


def directives(answer: httpx.Response) -> dict[str, list[str]]:
    """The content security policy of an answer: directive -> sources."""
    parts = answer.headers["content-security-policy"].split(";")
    return {name: sources for name, *sources in (part.split() for part in parts)}


async def test_the_page_and_all_it_loads_come_from_this_gateway(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    found = References()
    found.feed(page.text)
    assert found.inline == [], "the policy allows neither inline code nor inline style"
    loaded = [one for one in found.loaded if not one.startswith("data:")]
    assert len(loaded) == 3
    started = (await client.get("/docs/start.js")).text
    document = re.search(r'url: new URL\("([^"]+)"', started)
    assert document is not None
    for address in (*loaded, document[1]):
        url = urljoin(str(page.url), address)
        assert urlsplit(url).netloc == page.url.netloc.decode(), address
        answer = await client.get(url)
        assert answer.status_code == 200, address
        assert answer.content
    assert (await client.get(urljoin(str(page.url), document[1]))).json()["openapi"]


async def test_the_policy_lets_the_page_load_from_nowhere_else(client: httpx.AsyncClient) -> None:
    for path in ASSETS:
        answer = await client.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        allowed = directives(answer)
        assert allowed.pop("img-src") == ["'self'", "data:"]
        assert allowed["default-src"] == ["'none'"]
        for name, sources in allowed.items():
            assert sources in (["'self'"], ["'none'"]), name


async def test_the_style_sheet_loads_nothing(client: httpx.AsyncClient) -> None:
    style = (await client.get("/docs/swagger-ui.css")).text
    used = re.findall(r"url\(\s*[\"']?([^)\"']*)|@import\s+[\"']([^\"']*)", style)
    assert used
    assert all((one or other).startswith("data:") for one, other in used)


async def test_the_page_needs_authentication(gateway: Gateway) -> None:
    async with http(gateway, None) as nobody:
        for path in ASSETS:
            answer = await nobody.get(path)
            check_error(answer, 401, "gateway:authentication.failed")
            assert answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize("name", ["LICENSE", "..%2FLICENSE", "%2e%2e%2fLICENSE", "nothing.js"])
async def test_nothing_else_is_served(client: httpx.AsyncClient, name: str) -> None:
    check_error(await client.get(f"/docs/{name}"), 404, "gateway:resource.notfound")
