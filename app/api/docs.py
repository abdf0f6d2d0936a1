"""``/docs``: swagger-ui over ``/openapi.json``, every byte of it from this process.

The files of swagger-ui come with a pip package, so nothing is fetched from elsewhere, and the page
carries a content security policy that would forbid it. Requests that are tried out go to the
gateway that served the page, with the credentials the browser has used for the page itself.
"""

from collections.abc import Awaitable, Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import FileResponse

from acks.errors import error
from app.api.auth import Principal

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""What the page may load: its own files, and the icons inside swagger-ui's style sheet (data:)."""

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>ackgate: HTTP API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<noscript>This page needs JavaScript. The document itself is at
<a href="openapi.json">openapi.json</a>.</noscript>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

_START = """// Without the credentials that an address may hold: browsers refuse to fetch with them.
const page = location.origin + location.pathname;
window.ui = SwaggerUIBundle({
  url: new URL("openapi.json", page).href,
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "none",
  displayRequestDuration: true,
  filter: true,
  validatorUrl: null,
});
"""


_ASSETS = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}
"""Files of swagger-ui that the page needs, with their media types."""


def _folder() -> Path:
    with as_file(files("fastapi_standalone_docs") / "static" / "swagger") as folder:
        return folder


def add_docs(app: FastAPI, user: Callable[[Request], Awaitable[Principal]]) -> None:
    """Add the page and its files to ``app``; ``user`` authenticates every one of them."""
    folder = _folder()

    async def page(principal: Annotated[Principal, Depends(user)]) -> Response:
        return Response(_PAGE, media_type="text/html", headers=_HEADERS)

    async def asset(name: str, principal: Annotated[Principal, Depends(user)]) -> Response:
        if name == "start.js":
            return Response(_START, media_type="text/javascript", headers=_HEADERS)
        media_type = _ASSETS.get(name)
        if media_type is None:
            raise error("gateway:resource.notfound", path=f"/docs/{name}")
        return FileResponse(folder / name, media_type=media_type, headers=_HEADERS)

    app.get("/docs", include_in_schema=False)(page)
    app.get("/docs/{name}", include_in_schema=False)(asset)
