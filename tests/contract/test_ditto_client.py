"""Eclipse Ditto's own client for Node.js works with a gateway, unchanged."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.gateways import Gateway, Json, Subscriber, ack_all, new_id, new_label

PACKAGE = "@eclipse-ditto/ditto-javascript-client-node"
VERSION = "3.9.1"
INSTALL_S = 120
SCRIPT = Path(__file__).with_name("ditto_client.js")


@pytest.fixture(scope="module")
def client_folder() -> Path:
    """Where npm has put the client; skips the tests if it cannot."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not here")
    folder = Path(tempfile.gettempdir()) / f"ackgate-test-ditto-client-{VERSION}-{os.getuid()}"
    installed = folder / "node_modules" / PACKAGE / "package.json"
    if installed.is_file():
        return folder
    folder.mkdir(exist_ok=True)
    # Built beside it and moved, so that half an installation is never taken for one.
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        command += ["--prefix", fresh, f"{PACKAGE}@{VERSION}"]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, timeout=INSTALL_S, text=True
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not install {PACKAGE} within {INSTALL_S} s")
        if done.returncode:
            pytest.skip(f"npm could not install {PACKAGE}: {done.stderr.strip()[-300:]}")
        modules = folder / "node_modules"
        if not modules.exists():
            (Path(fresh) / "node_modules").rename(modules)
    return folder


@pytest.fixture(scope="module")
def results(gateway: Gateway, client_folder: Path) -> Json:
    """What came of each step of the script."""
    return asyncio.run(run_script(gateway, client_folder))


async def run_script(gateway: Gateway, client_folder: Path) -> Json:
    """Run it beside a subscriber that answers it."""
    thing_id, label = new_id(), new_label()

    def respond(signal: Json) -> Json | None:
        headers = {"content-type": signal["headers"].get("content-type", "text/plain")}
        if "/messages/" in signal["topic"] and signal["path"].endswith("/tell"):
            return None
        if "/messages/" in signal["topic"]:
            return {"status": 200, "value": {"got": signal["value"]}, "headers": headers}
        return {"status": 204}

    async with Subscriber.open(gateway, label, ack=ack_all, respond=respond) as subscriber:
        await subscriber.command("START-SEND-MESSAGES")
        await subscriber.command("START-SEND-LIVE-COMMANDS")
        process = await asyncio.create_subprocess_exec(
            *("node", str(SCRIPT), str(client_folder), f"127.0.0.1:{gateway.port}"),
            *(thing_id, label),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if "proxy" not in k.lower()},
        )
        try:
            out, problem = await asyncio.wait_for(process.communicate(), 90)
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0, problem.decode() + out.decode()
    found: Json = json.loads(out)
    return {**found, "thingId": thing_id, "label": label}


def test_things_are_put_and_read(results: Json) -> None:
    thing_id = results["thingId"]
    assert results["put"] == {"status": 201, "thingId": thing_id}
    assert results["get"]["attributes"] == {"colour": "warm"}
    assert (results["modify"], results["patch"], results["deleted"]) == (204, 204, 204)
    assert results["property"] == 7


def test_errors_reach_the_caller(results: Json) -> None:
    assert results["conflict"]["error"] == "things:thing.conflict"
    assert results["missing"]["error"] == "things:attribute.notfound"
    assert results["precondition"]["error"] == "things:precondition.failed"


def test_events_reach_the_subscriber(results: Json) -> None:
    event = results["event"]
    assert (event["action"], event["path"], event["value"]) == (
        "modified",
        "/attributes/colour",
        "cold",
    )


def test_acks_are_requested(results: Json) -> None:
    acks = results["acks"]
    assert acks["status"] == 200
    assert list(acks["body"]) == ["twin-persisted", results["label"]]
    assert [entry["status"] for entry in acks["body"].values()] == [204, 200]


def test_messages_are_answered(results: Json) -> None:
    assert results["message"] == {"status": 200, "body": {"got": "how are you?"}}
    assert results["json"] == {"status": 200, "body": {"got": {"power": 7}}}
    assert results["claim"] == 200
    received = results["received"]
    assert (received["action"], received["value"]) == ("tell", "something")


def test_live_commands_are_answered(results: Json) -> None:
    live = results["live"]
    assert live["status"] == 204
    assert (live["command"]["action"], live["command"]["path"]) == ("modify", "/attributes/colour")
