"""``ackgate connections``: try a document, and look at the connections of a running gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from app.cli_operator import AS_JSON, URL, USAGE_ERROR, USER, expect, fail, request

if TYPE_CHECKING:
    from connections.model import Connection

_COLLECTION = "/api/2/connections"


@click.group()
def connections() -> None:
    """Connections to brokers (docs/connections.md)."""


@connections.command("test")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--url", help="Have this gateway try it; default: this machine tries it.")
@USER
@click.option("--check", is_flag=True, help="Only look at the document, connect to nothing.")
def test(file: Path, url: str | None, user: str, check: bool) -> None:
    """Check the connection document FILE, then connect to its broker and disconnect again.

    Exit code: 0 fine, 1 the document or the connection is not, 2 nothing could be tried.
    """
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as problem:
        fail(USAGE_ERROR, f"{file} is not JSON: {problem}")
    if isinstance(document, dict):
        document.pop("id", None)
    connection = _checked(document)
    if check:
        click.echo(f"The document is fine: {_summary(connection)}.")
        return
    if url is not None:
        body = json.dumps(document).encode()
        status, answer = request("POST", url, f"{_COLLECTION}?dry-run=true", user, body)
        expect(status, answer, 200)
        click.echo(answer.decode("utf-8", "replace"))
        return
    click.echo(asyncio.run(_tried(connection)))


@connections.command("list")
@URL
@USER
@AS_JSON
def list_all(url: str, user: str, as_json: bool) -> None:
    """Print all connections: id, type, status, name."""
    found = _get(url, user, "?fields=id,name,connectionType,connectionStatus", as_json)
    for one in found or ():
        name = one.get("name") or "-"
        click.echo(f"{one['id']}  {one['connectionType']}  {one['connectionStatus']}  {name}")


@connections.command("status")
@click.argument("connection_id", metavar="ID")
@URL
@USER
@AS_JSON
def status(connection_id: str, url: str, user: str, as_json: bool) -> None:
    """Print how a connection is: itself, its clients, its sources and targets."""
    found = _get(url, user, f"/{quote(connection_id, safe=':')}/status", as_json)
    if found is None:
        return
    click.echo(f"wanted {found['connectionStatus']}, is {found['liveStatus']}")
    for key in ("clientStatus", "sourceStatus", "targetStatus"):
        for entry in found.get(key, ()):
            what = " ".join(filter(None, (entry["type"], entry.get("address"))))
            details = entry.get("statusDetails") or ""
            click.echo(f"{what} on {entry['client']}: {entry['status']} {details}".rstrip())


@connections.command("logs")
@click.argument("connection_id", metavar="ID")
@URL
@USER
@AS_JSON
def logs(connection_id: str, url: str, user: str, as_json: bool) -> None:
    """Print what has happened on a connection lately; failures always, successes if enabled."""
    found = _get(url, user, f"/{quote(connection_id, safe=':')}/logs", as_json)
    for entry in () if found is None else found["connectionLogs"]:
        address = entry.get("address", "-")
        click.echo(
            f"{entry['timestamp']}  {entry['level']}  {entry['category']}/{entry['type']}  "
            f"{address}  {entry['message']}"
        )


# --- how


def _checked(document: object) -> Connection:
    """What the document means; ends the process with what is wrong with it."""
    from uuid import uuid4

    from acks.errors import GatewayError
    from connections.documents.validation import check_connection
    from connections.model import DRY_RUN

    try:
        return check_connection(document, f"{uuid4()}{DRY_RUN}")[1]
    except GatewayError as problem:
        fail(1, problem.message, problem.description)


def _summary(connection: Connection) -> str:
    sources, targets = len(connection.sources), len(connection.targets)
    return f"{connection.kind} with {sources} source(s) and {targets} target(s)"


async def _tried(connection: Connection) -> str:
    from connections.driver import OpenError
    from connections.drivers import factory
    from connections.supervisor import probe

    try:
        outcome = await probe(connection, factory(connection.kind))
    except OpenError as problem:
        outcome = problem
    if isinstance(outcome, OpenError):
        fail(1, f"{outcome} ({outcome.cause})")
    return outcome


def _get(url: str, user: str, path: str, as_json: bool) -> Any:
    """What the gateway answers; None if it has been printed already."""
    status, answer = request("GET", url, _COLLECTION + path, user)
    expect(status, answer, 200)
    found = json.loads(answer)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return None
    return found
