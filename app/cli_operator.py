"""What commands share: how they fail, and how they ask a running gateway as an operator."""

from __future__ import annotations

import base64
import http.client
import json
import sys
from typing import NoReturn
from urllib.parse import urlsplit

import click

USAGE_ERROR = 2
"""Exit code for everything that the caller can put right."""
TIMEOUT_S = 30.0
"""For an answer of the gateway, which itself takes up to 10 s to try a connection."""

USER = click.option(
    "--user",
    default="devops:foobar",
    envvar="ACKGATE_OPERATOR",
    show_envvar=True,
    help="name:password of an operator (devops:foobar, of development).",
)
URL = click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The gateway.")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="As the gateway says it.")


def request(
    method: str, url: str, path: str, user: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """Ask the gateway at ``url``: status and body; ends the process if it cannot be reached."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        fail(USAGE_ERROR, f"--url has to be like http://127.0.0.1:8080, not {url}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"authorization": "Basic " + base64.b64encode(user.encode()).decode()}
    if body is not None:
        headers["content-type"] = "application/json"
    try:
        gateway = kind(parts.hostname, parts.port, timeout=TIMEOUT_S)
        try:
            gateway.request(method, parts.path.rstrip("/") + path, body, headers)
            answer = gateway.getresponse()
            return answer.status, answer.read()
        finally:
            gateway.close()
    except (OSError, ValueError, http.client.HTTPException) as problem:
        fail(USAGE_ERROR, f"the gateway at {url} cannot be asked: {str(problem) or repr(problem)}")


def expect(status: int, answer: bytes, wanted: int) -> None:
    """End the process with what the gateway says unless ``status`` is the one that is wanted."""
    if status == wanted:
        return
    try:
        problem = json.loads(answer)
        texts = (problem.get("message"), problem.get("description"))
    except (ValueError, AttributeError):
        texts = (answer[:500].decode("utf-8", "replace"), None)
    fail(1, f"{status}: {texts[0]}", texts[1])


def fail(code: int, *texts: str | None) -> NoReturn:
    """End the process with exit ``code``, after printing ``texts``."""
    for text in filter(None, texts):
        click.echo(f"ackgate: error: {text}", err=True)
    sys.exit(code)
