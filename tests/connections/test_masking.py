"""Secrets of a connection are never shown, and never sent where they were not meant for."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from acks.errors import GatewayError
from connections.documents.masking import MASK, masked, restored, without_password
from tests.connections.documents import document, source, target

SECRET = "s3cr3t-Valu3"


def full(**more: Any) -> dict[str, Any]:
    """A document with a secret wherever there can be one."""
    return document(
        uri=f"ssl://user:{SECRET}@broker:8883/path",
        credentials={
            "type": "oauth-client-credentials",
            "tokenEndpoint": "https://issuer/token",
            "clientId": "shown",
            "clientSecret": SECRET,
            "parameters": {"sharedKey": SECRET, "region": SECRET},
            "cert": f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        },
        specificConfig={
            "saslPassword": SECRET,
            "clientId": "shown",
            "proxy": f"http://u:{SECRET}@p",
        },
        sources=[
            source(replyTarget={"address": "r", "headerMapping": {"Cookie": f"id={SECRET}"}}),
        ],
        targets=[
            target(
                headerMapping={
                    "Authorization": f"Bearer {SECRET}",
                    "X-Api-Key": SECRET,
                    "content-type": "shown",
                    "proxy-authorization": f"Basic {SECRET}",
                }
            )
        ],
        sshTunnel={"enabled": False, "credentials": {"type": "password", "password": SECRET}},
        **more,
    )


def test_no_secret_is_shown_and_everything_else_is() -> None:
    given = full()
    shown = masked(given)
    text = orjson.dumps(shown).decode()
    assert SECRET not in text
    assert given == full()  # untouched
    assert shown["uri"] == f"ssl://user:{MASK}@broker:8883/path"
    assert shown["credentials"]["clientId"] == "shown"
    assert shown["credentials"]["tokenEndpoint"] == "https://issuer/token"
    assert shown["specificConfig"]["clientId"] == "shown"
    assert shown["targets"][0]["headerMapping"]["content-type"] == "shown"
    assert shown["targets"][0]["authorizationContext"] == ["ditto:out"]
    assert text.count(MASK) == 12


@pytest.mark.parametrize(
    "value",
    ["{{ header:authorization }}", "Bearer {{ header:token }}", "{{ a:b }} {{ fn:c('d') }}", ""],
)
def test_placeholders_are_no_secrets(value: str) -> None:
    given = document(targets=[target(headerMapping={"authorization": value})])
    assert masked(given) == given


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tcp://host:1", "tcp://host:1"),
        ("tcp://user@host:1", "tcp://user@host:1"),
        ("tcp://user:pw@host:1", f"tcp://user:{MASK}@host:1"),
        ("tcp://:pw@host:1", f"tcp://:{MASK}@host:1"),
        ("tcp://user:p@w:x@host:1/a", f"tcp://user:{MASK}@host:1/a"),
        ("user:pw@host", f"{MASK}@host"),
        ("at tcp://a:b@c:1 and tcp://d:e@f:2", f"at tcp://a:{MASK}@c:1 and tcp://d:{MASK}@f:2"),
    ],
)
def test_passwords_of_uris(text: str, shown: str) -> None:
    assert without_password(text) == shown


def test_what_was_shown_can_be_sent_back() -> None:
    stored = full()
    assert restored(masked(stored), stored) == stored
    changed = masked(stored) | {"name": "new", "targets": [], "clientCount": 2}
    back = restored(changed, stored)
    assert back["uri"] == stored["uri"]
    assert back["credentials"] == stored["credentials"]
    assert (back["name"], back["targets"]) == ("new", [])


def test_new_secrets_replace_the_old_ones() -> None:
    stored = full()
    changed = masked(stored) | {"uri": "ssl://user:other@broker:8883/path"}
    back = restored(changed, stored)
    assert back["uri"] == "ssl://user:other@broker:8883/path"
    assert back["credentials"] == stored["credentials"]


@pytest.mark.parametrize(
    "change",
    [
        {"uri": f"ssl://user:{MASK}@elsewhere:8883/path"},
        {"uri": f"ssl://other:{MASK}@broker:8883/path"},
        {"uri": f"tcp://user:{MASK}@broker:8883/path"},
        {"uri": "ssl://user:given@elsewhere:8883/path"},
        {"credentials": {"tokenEndpoint": "https://elsewhere/token", "clientSecret": MASK}},
        {"specificConfig": {"otherPassword": MASK}},
        {"targets": [target(), target(headerMapping={"authorization": MASK})]},
    ],
)
def test_secrets_go_to_nobody_else(change: dict[str, Any]) -> None:
    stored = full()
    with pytest.raises(GatewayError) as caught:
        restored(masked(stored) | change, stored)
    assert caught.value.code == "connectivity:connection.configuration.invalid"
    assert SECRET not in str(caught.value.to_json())


def test_a_new_document_has_its_own_secrets() -> None:
    assert restored(full(), None) == full()
    with pytest.raises(GatewayError, match="/uri"):
        restored(document(uri=f"tcp://u:{MASK}@broker:1883"), None)
    starred = document(name=MASK, tags=["*" * 9])
    assert restored(starred, None) == starred
