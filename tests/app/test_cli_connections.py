"""``ackgate connections``: as a person uses it, with and without a gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.test_cli import ackgate
from tests.connections.documents import document, target
from tests.gateways import Gateway, running
from tests.servers import free_port, redis_server

PASSWORD = "wolfsbane"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with redis_server() as store:
        one = Gateway(tmp_path_factory.mktemp("cli"), redis_url=store.url, connections="false")
        with running(one):
            yield one


def saved(tmp_path: Path, **fields: Any) -> str:
    file = tmp_path / "connection.json"
    file.write_text(json.dumps(document(**fields)))
    return str(file)


def test_a_document_is_checked(tmp_path: Path) -> None:
    done = ackgate("connections", "test", "--check", saved(tmp_path, id="old"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "mqtt with 1 source(s) and 1 target(s)" in done.stdout
    done = ackgate("connections", "test", "--check", saved(tmp_path, clientCount=0))
    assert (done.returncode, done.stdout) == (1, "")
    assert "'clientCount' has to be a whole number" in done.stderr


def test_what_is_no_document(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("{")
    assert ackgate("connections", "test", str(file)).returncode == 2
    file.write_text("[]")
    done = ackgate("connections", "test", str(file))
    assert (done.returncode, "JSON object" in done.stderr) == (1, True)
    assert ackgate("connections", "test", str(tmp_path / "none")).returncode == 2


def test_a_broker_that_is_not_there(tmp_path: Path, gateway: Gateway) -> None:
    uri = f"tcp://me:{PASSWORD}@127.0.0.1:{free_port()}"
    for more in ((), ("--url", gateway.url)):
        done = ackgate("connections", "test", saved(tmp_path, uri=uri), *more)
        assert (done.returncode, done.stdout) == (1, "")
        assert "cannot be reached" in done.stderr
        assert PASSWORD not in done.stderr


def test_a_server_that_is_there(tmp_path: Path, gateway: Gateway) -> None:
    file = saved(
        tmp_path,
        connectionType="http-push",
        uri=gateway.url.replace("127.0.0.1", "localhost"),
        sources=[],
        targets=[target(address="POST:/x")],
    )
    for more in ((), ("--url", gateway.url)):
        done = ackgate("connections", "test", file, *more)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip()


def test_connections_are_shown(tmp_path: Path, gateway: Gateway) -> None:
    import urllib.request

    from tests.gateways import basic

    headers = {"authorization": basic("devops"), "content-type": "application/json"}
    body = json.dumps(document(name="first")).encode()
    request = urllib.request.Request(f"{gateway.url}/api/2/connections", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        name = json.load(answer)["id"]
    at = ("--url", gateway.url)
    done = ackgate("connections", "list", *at)
    assert (done.returncode, done.stdout) == (0, f"{name}  mqtt  closed  first\n")
    assert json.loads(ackgate("connections", "list", "--json", *at).stdout)[0]["id"] == name
    done = ackgate("connections", "status", name, *at)
    assert (done.returncode, done.stdout) == (0, "wanted closed, is closed\n")
    assert ackgate("connections", "logs", name, *at).stdout == ""
    logs = json.loads(ackgate("connections", "logs", name, "--json", *at).stdout)
    assert logs["connectionLogs"] == []


def test_what_cannot_be_asked(gateway: Gateway) -> None:
    at = ("--url", gateway.url)
    done = ackgate("connections", "status", "no body", *at)
    assert (done.returncode, "400: The connection ID" in done.stderr) == (1, True)
    done = ackgate("connections", "list", "--user", "ditto:ditto", *at)
    assert (done.returncode, "403" in done.stderr) == (1, True)
    operator = {"ACKGATE_OPERATOR": f"devops:{PASSWORD}"}
    done = ackgate("connections", "list", *at, environment=operator)
    assert (done.returncode, "401" in done.stderr) == (1, True)
    done = ackgate("connections", "list", "--url", f"http://127.0.0.1:{free_port()}")
    assert (done.returncode, "cannot be asked" in done.stderr) == (2, True)
    assert ackgate("connections", "list", "--url", "nowhere").returncode == 2
