"""``ackgate search``: how the search index of a running gateway is, and building it anew."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from app.cli_operator import AS_JSON, URL, USER, expect, fail, request

PATH = "/devops/search"
LOOK_S = 0.5
"""How often the progress is asked for, s."""
LINE_S = 10.0
"""How often a line tells the progress where no terminal shows a bar, s."""
LABEL = "Looking at all things"


@click.group()
def search() -> None:
    """The search index (docs/operations.md)."""


@search.command("status")
@URL
@USER
@AS_JSON
def status(url: str, user: str, as_json: bool) -> None:
    """Print how the index is.

    What it holds, how far it is behind, who works on which shard. Exit code: 0 complete, 1 not.
    """
    found = _status(url, user)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print(found)
    if found["state"] != "complete":
        raise SystemExit(1)


@search.command("rebuild")
@URL
@USER
@click.option("--no-wait", is_flag=True, help="Do not wait for the end.")
def rebuild(url: str, user: str, no_wait: bool) -> None:
    """Build the index anew, and show the progress.

    It is made from the things in the store. The gateways go on serving; what is found meanwhile is
    what was in the index before.
    """
    code, answer = request("POST", url, f"{PATH}/rebuild", user)
    expect(code, answer, 202)
    if no_wait:
        click.echo("The rebuild has been asked for.")
        return
    began = time.monotonic()
    found = _follow(url, user)
    if found["state"] == "unavailable":
        fail(1, "the index is unavailable", found.get("reason"))
    seconds = time.monotonic() - began
    click.echo(f"The index is built anew: {found['things']} things, {seconds:.1f} s.")


def _follow(url: str, user: str) -> dict[str, Any]:
    """Show the progress until no rebuild is under way; the status then."""
    if not sys.stdout.isatty():
        return _follow_in_lines(url, user)
    shown = 0
    with click.progressbar(length=1000, label=LABEL) as bar:
        while True:
            found = _status(url, user)
            done = _done(found)
            if done is None:
                bar.update(1000 - shown)
                return found
            # Never back: a rebuild that was interrupted begins again.
            bar.update(max(0, done - shown))
            shown = max(shown, done)
            time.sleep(LOOK_S)


def _follow_in_lines(url: str, user: str) -> dict[str, Any]:
    click.echo(f"{LABEL}: 0 %")
    told = time.monotonic()
    while True:
        found = _status(url, user)
        done = _done(found)
        if done is None:
            return found
        if time.monotonic() - told >= LINE_S:
            told = time.monotonic()
            click.echo(f"{LABEL}: {done // 10} %")
        time.sleep(LOOK_S)


def _done(found: dict[str, Any]) -> int | None:
    """How much of the rebuilds is done, in thousandths; None if none is under way."""
    under_way = found.get("rebuild")
    if under_way is None or not under_way["shards"]:
        return None
    return min(999, 1000 * int(under_way["seen"]) // max(1, int(under_way["total"])))


def _status(url: str, user: str) -> dict[str, Any]:
    code, answer = request("GET", url, PATH, user)
    expect(code, answer, 200)
    found: dict[str, Any] = json.loads(answer)
    return found


def _print(found: dict[str, Any]) -> None:
    if "shards" not in found:
        click.echo(": ".join(filter(None, (found["state"], found.get("reason")))))
        return
    click.echo(
        f"{found['state']}, {found['database']}, {found['things']} things, "
        f"{found['indexers']} indexer(s), {found['lagMs']} ms behind"
    )
    for one in found["shards"]:
        rebuild = one["rebuild"]
        state = rebuild["state"]
        if state == "running":
            state = f"rebuild {100 * rebuild['seen'] // max(1, rebuild['total'])} %"
        elif state == "wanted":
            state = "waits for its rebuild"
        else:
            state = "built"
        owner = one["owner"] or "nobody"
        click.echo(f"shard {one['shard']}: {owner}, {one['lagMs']} ms behind, {state}")
