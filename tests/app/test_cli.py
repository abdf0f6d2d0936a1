from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import bcrypt

ROOT = Path(__file__).parents[2]


def ackgate(
    *arguments: str, environment: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own, as a person would."""
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_needs_no_heavy_module() -> None:
    code = (
        "import sys, click\n"
        "from app.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'pydantic', 'fastapi', 'uvicorn', 'pyspark', 'structlog', 'bcrypt'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "serve" in done.stdout


def test_version() -> None:
    done = ackgate("version")
    assert done.returncode == 0
    assert done.stdout.startswith("ackgate ")


def test_show_names_value_and_origin_and_masks_secrets() -> None:
    environment = {
        "ACKGATE_USERS": "alice:hunter2",
        "ACKGATE_REDIS_URL": "redis://app:hunter2@db:6380/1",
    }
    as_text = ackgate("config", "show", environment=environment)
    as_json = ackgate("config", "show", "--port", "9000", "--json", environment=environment)
    for done in (as_text, as_json):
        assert done.returncode == 0, done.stderr
        assert "alice" in done.stdout
        assert "hunter2" not in done.stdout + done.stderr
    settings = json.loads(as_json.stdout)["settings"]
    assert settings["port"] == {"value": 9000, "origin": "option", "environment": "ACKGATE_PORT"}
    assert settings["users"]["value"] == "alice:***"
    assert settings["redis_url"]["value"] == "redis://app:***@db:6380/1"
    assert settings["redis_url"]["origin"] == "env"
    assert settings["host"]["origin"] == "default"


def test_check_reports_every_problem_and_warning() -> None:
    done = ackgate(
        "config",
        "check",
        environment={"ACKGATE_PORT": "x", "ACKGATE_SHARDS": "0", "ACKGATE_USERS": "a"},
    )
    assert done.returncode == 1
    assert [line.split(":")[2].strip() for line in done.stderr.splitlines()] == [
        "ACKGATE_PORT",
        "ACKGATE_USERS",
        "ACKGATE_SHARDS",
    ]


def test_check_says_what_serve_would_refuse() -> None:
    done = ackgate("config", "check", environment={"ACKGATE_PROT": "1"})
    assert done.returncode == 1
    assert "warning: unknown environment variable ACKGATE_PROT" in done.stderr
    assert "error: no users" in done.stderr
    assert ackgate("config", "check", "--dev").returncode == 0


def test_serve_refuses_unsafe_settings_with_one_line() -> None:
    done = ackgate("serve", "--port", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "ackgate: error: refusing to start: no users: set ACKGATE_USERS, or use --dev for "
        "development\n"
    )


def test_serve_refuses_wrong_settings_without_a_traceback() -> None:
    done = ackgate("serve", "--dev", "--redis-url", "http://:hunter2@host")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("ackgate: error: --redis-url: not a store URL")
    assert "hunter2" not in done.stderr


def test_missing_config_file_is_a_user_error(tmp_path: Path) -> None:
    done = ackgate("config", "show", "--config", str(tmp_path / "none.toml"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_hash_password_from_standard_input() -> None:
    done = ackgate("hash-password", stdin="correct horse\n")
    assert done.returncode == 0
    assert bcrypt.checkpw(b"correct horse", done.stdout.strip().encode())
    empty = ackgate("hash-password", stdin="\n")
    assert (empty.returncode, empty.stdout) == (2, "")


def test_page_check_sees_an_old_page(tmp_path: Path) -> None:
    assert ackgate("config", "page", "--check").returncode == 1
    assert ackgate("config", "page", "--write").returncode == 0
    assert (tmp_path / "docs" / "configuration.md").is_file()
    assert ackgate("config", "page", "--check").returncode == 0
