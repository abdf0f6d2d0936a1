from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog

from app.observe.log import configure, mask_text
from app.settings import Settings


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_one_json_line_with_correlation_id(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"))
    structlog.contextvars.bind_contextvars(correlation_id="c-1")
    structlog.get_logger("app.x").info("thing.changed", thing="a:b", parts=(1, 2))
    (line,) = lines(capsys)
    assert str(line.pop("timestamp")).endswith("Z")
    assert line == {
        "level": "info",
        "event": "thing.changed",
        "logger": "app.x",
        "correlation_id": "c-1",
        "thing": "a:b",
        "parts": [1, 2],
    }


def test_level_is_respected(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json", log_level="warning"))
    log = structlog.get_logger("app.y")
    log.info("quiet")
    log.warning("loud")
    assert [line["event"] for line in lines(capsys)] == ["loud"]


def test_the_pool_of_postgresql_does_not_tell_each_failed_attempt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(Settings(log_format="json"))
    logging.getLogger("asyncpg.pool").warning("no connection, trying again", exc_info=OSError("x"))
    logging.getLogger("asyncpg.pool").error("broken")
    assert [line["event"] for line in lines(capsys)] == ["broken"]


def test_uvicorn_and_warnings_go_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"))
    logging.getLogger("uvicorn.error").error("it %s", "broke")
    logging.getLogger("uvicorn.access").info("GET /")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old thing", UserWarning, stacklevel=1)
    seen = lines(capsys)
    assert seen[0]["event"] == "it broke"
    assert seen[0]["logger"] == "uvicorn.error"
    assert "old thing" in str(seen[1]["event"])
    assert len(seen) == 2


def test_configuring_twice_writes_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format="json"))
    configure(Settings(log_format="json"))
    structlog.get_logger("app.z").info("once")
    assert len(lines(capsys)) == 1


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_secret_gets_through(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_format=log_format))
    log = structlog.get_logger("app.secret")
    log.info(
        "connect redis://app:hunter2@db:1",
        url="redis://:hunter2@db",
        password="hunter2",
        headers=[(b"authorization", b"Basic aHVudGVyMjpodW50ZXIy"), (b"host", b"here")],
        nested={"api_token": "hunter2", "list": [{"client-secret": b"hunter2"}]},
    )
    try:
        raise ValueError("redis://:hunter2@db is no good")
    except ValueError:
        log.exception("failed")
    logging.getLogger("x").warning("Authorization: Bearer hunter2-hunter2")
    written = capsys.readouterr().err
    assert "hunter2" not in written
    assert "aHVudGVyMjpodW50ZXIy" not in written
    assert "is no good" in written
    assert "here" in written


TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl-_"


@pytest.mark.parametrize(
    "text",
    [
        f"GET /ws/2?declared-acks=a:b&access_token={TOKEN}&x=1 HTTP/1.1",
        "GET /ws/2?access_token=c2lnbmF0dXJl HTTP/1.1",
        f"TEXT 'JWT-TOKEN?jwtToken={TOKEN}' [90 bytes]",
        f"token {TOKEN} is wrong",
        f"Authorization: Bearer {TOKEN}",
        "/api/2/whoami?x-ditto-pre-authenticated=c2lnbmF0dXJl",
        "postgresql:///twins?host=db&password=c2lnbmF0dXJl&user=a",
        "postgresql://db/twins?sslpassword=c2lnbmF0dXJl",
    ],
)
def test_no_secret_of_a_text_gets_through(text: str) -> None:
    assert "c2lnbmF0dXJl" not in mask_text(text)
    assert "***" in mask_text(text)


@pytest.mark.parametrize(
    "text",
    ["basic authentication failed", "http://127.0.0.1:8080", "https://h/a?x=1", "a@b.example"],
)
def test_harmless_text_stays(text: str) -> None:
    assert mask_text(text) == text
