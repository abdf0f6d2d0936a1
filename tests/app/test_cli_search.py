"""``ackgate search`` against a running gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app import cli_search
from app.cli import main
from tests.gateways import Gateway, running
from tests.servers import redis_server, wait_for_sync


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with redis_server() as store:
        one = Gateway(tmp_path_factory.mktemp("cli"), redis_url=store.url, search_index="sqlite")
        with running(one):
            wait_for_sync(lambda: ask(one, "status").exit_code == 0, 30, "a complete index")
            yield one


def ask(gateway: Gateway, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["search", *arguments, "--url", gateway.url])


def test_the_status_names_every_shard_and_who_has_it(gateway: Gateway) -> None:
    lines = ask(gateway, "status").output.splitlines()
    assert lines[0].startswith("complete, sqlite, 0 things, 1 indexer(s), 0 ms behind")
    assert len(lines) == 1 + 8
    assert all(line.endswith("0 ms behind, built") for line in lines[1:])


def test_the_status_is_there_as_json(gateway: Gateway) -> None:
    found = json.loads(ask(gateway, "status", "--json").output)
    assert (found["state"], found["rebuild"]["shards"]) == ("complete", 0)


def test_a_rebuild_is_followed_to_its_end(gateway: Gateway) -> None:
    result = ask(gateway, "rebuild")
    assert result.exit_code == 0, result.output
    assert "The index is built anew: 0 things" in result.output
    assert len(gateway.events("search.rebuild_finished")) == 16


def test_without_a_terminal_the_progress_is_lines(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_search, "LINE_S", 0)
    first, *progress, last = ask(gateway, "rebuild").output.splitlines()
    assert first == "Looking at all things: 0 %"
    assert all(re.fullmatch(r"Looking at all things: \d+ %", line) for line in progress)
    assert last.startswith("The index is built anew: 0 things")


def test_an_index_that_cannot_be_reached_is_told_with_its_reason(tmp_path: Path) -> None:
    with redis_server() as store:
        blocked = tmp_path / "a-file"
        blocked.touch()
        file = blocked / "search.sqlite"
        one = Gateway(tmp_path, redis_url=store.url, search_index=f"sqlite:{file}")
        with running(one):
            status = ask(one, "status")
    assert status.exit_code == 1
    assert status.output.startswith(f"unavailable: {file} cannot be opened")


def test_a_rebuild_need_not_be_waited_for(gateway: Gateway) -> None:
    result = ask(gateway, "rebuild", "--no-wait")
    assert (result.exit_code, result.output) == (0, "The rebuild has been asked for.\n")


def test_only_operators_may(gateway: Gateway) -> None:
    for command in ("status", "rebuild"):
        result = ask(gateway, command, "--user", "ditto:ditto")
        assert result.exit_code == 1
        assert "403" in result.output


def test_an_index_that_is_off_says_so(tmp_path: Path) -> None:
    with redis_server() as store:
        one = Gateway(tmp_path, redis_url=store.url, search_index="off")
        with running(one):
            status, rebuild = ask(one, "status"), ask(one, "rebuild")
    assert (status.exit_code, status.output) == (1, "off\n")
    assert rebuild.exit_code == 1
    assert "503" in rebuild.output
