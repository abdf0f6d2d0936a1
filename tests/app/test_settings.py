from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from app import settings_page
from app.credentials import CredentialsError, hash_password, parse_credentials
from app.settings import Settings, SettingsError, UnsafeSettings, env_name, load

ROOT = Path(__file__).parents[2]


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def problems(**options: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(options)
    return str(caught.value)


def unsafe(**options: Any) -> list[str]:
    with pytest.raises(UnsafeSettings) as caught:
        load(options).settings.check_safe()
    return caught.value.problems


def test_defaults_are_valid_although_pydantic_does_not_check_them() -> None:
    defaults = Settings()
    given = {
        name: getattr(defaults, name)
        for name in Settings.model_fields
        if getattr(defaults, name) is not None
    }
    assert Settings(**given) == defaults


def test_every_field_has_a_default_and_one_sentence() -> None:
    for name, field in Settings.model_fields.items():
        assert not field.is_required(), name
        assert field.description, name
        assert field.description.endswith("."), name


def test_option_wins_over_environment_over_file_over_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ackgate.toml").write_text("port = 1\nworkers = 2\nshards = 3\n")
    monkeypatch.setenv("ACKGATE_PORT", "11")
    monkeypatch.setenv("ACKGATE_WORKERS", "12")
    loaded = load({"port": 21, "host": None})
    values = loaded.settings
    assert (values.port, values.workers, values.shards, values.host) == (21, 12, 3, "127.0.0.1")
    names = ("port", "workers", "shards", "host")
    origins = [loaded.origins[name] for name in names]
    assert origins == ["option", "env", "file", "default"]


def test_empty_environment_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKGATE_PORT", "")
    loaded = load()
    assert loaded.settings.port == 8080
    assert loaded.origins["port"] == "default"


def test_config_file_by_environment_and_by_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("port = 1\n")
    two.write_text("port = 2\n")
    monkeypatch.setenv("ACKGATE_CONFIG", str(one))
    assert load().settings.port == 1
    assert load(config=two).settings.port == 2
    monkeypatch.setenv("ACKGATE_CONFIG", str(tmp_path / "none.toml"))
    assert "ACKGATE_CONFIG: there is no file" in problems()


def test_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ackgate.toml").write_text("port = \n")
    assert "ackgate.toml: cannot be read" in problems()


def test_unknown_keys_warn_with_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ackgate.toml").write_text('prot = 1\nzzzzqqqq = "x"\n')
    monkeypatch.setenv("ACKGATE_REDISURL", "redis://:hunter2@h")
    warnings = load().warnings
    assert warnings == (
        "ackgate.toml: unknown key prot; did you mean port?",
        "ackgate.toml: unknown key zzzzqqqq; it is ignored",
        "unknown environment variable ACKGATE_REDISURL; did you mean ACKGATE_REDIS_URL?",
    )


def test_all_problems_at_once_with_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ackgate.toml").write_text("shards = 0\n")
    monkeypatch.setenv("ACKGATE_PORT", "many")
    text = problems(workers=0)
    assert "ackgate.toml: shards:" in text
    assert "ACKGATE_PORT:" in text
    assert "--workers:" in text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5.0), ("500ms", 0.5), ("1m", 60.0), ("1h", 3600.0), ("7", 7.0), ("0.5 s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert Settings(store_timeout=text).store_timeout == seconds


@pytest.mark.parametrize("text", ["5 days", "-1s", "0", "nan", "", "s", "1e400"])
def test_wrong_durations(text: str) -> None:
    assert "--store-timeout" in problems(store_timeout=text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("64KiB", 65536), ("2 MiB", 2**21), ("1GiB", 2**30), ("10MB", 10**7)],
)
def test_sizes(text: str, size: int) -> None:
    assert Settings(max_body_bytes=text).max_body_bytes == size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("auto", "auto"),
        ("OFF", "off"),
        ("10.0.0.7:0", "10.0.0.7:0"),
        ("[::1]:65535", "[::1]:65535"),
    ],
)
def test_link_is_auto_off_or_an_address(text: str, value: str) -> None:
    assert Settings(link=text).link == value


@pytest.mark.parametrize(
    "text", ["on", "host", "host:", ":1", "host:65536", "host:-1", "0.0.0.0:1", "[::]:1", "host:x"]
)
def test_a_link_that_cannot_be_called_is_refused(text: str) -> None:
    assert "--link" in problems(link=text)


@pytest.mark.parametrize("text", ["0", "-1", "10 pounds", "1.5MiB"])
def test_wrong_sizes(text: str) -> None:
    assert "--max-body-bytes" in problems(max_body_bytes=text)


def test_default_timeout_may_not_exceed_the_longest_one() -> None:
    assert "default_timeout is longer than max_timeout" in problems(default_timeout="61s")


def test_data_dir_is_absolute_and_independent_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/srv/state")
    assert Settings().data_dir == Path("/srv/state/ackgate")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert Settings().data_dir == Path("/home/somebody/.local/share/ackgate")
    assert Settings(data_dir="here").data_dir == tmp_path / "here"
    assert Settings(data_dir="~/there").data_dir == Path("/home/somebody/there")


# ------------------------------------------------------------------------------ users


def test_users_and_operators_plain_and_hashed() -> None:
    bcrypt_form = hashed("s3cret")
    credentials = Settings(users=f"alice:pa:ss,bob:{bcrypt_form}", operators="ops:x").credentials()
    assert {name: (c.kind, c.operator) for name, c in credentials.items()} == {
        "alice": ("plain", False),
        "bob": ("bcrypt", False),
        "ops": ("plain", True),
    }
    assert credentials["alice"].secret.get_secret_value() == "pa:ss"
    assert credentials["bob"].secret.get_secret_value() == bcrypt_form


def test_apache_htpasswd_form_is_a_bcrypt_hash() -> None:
    form = hashed("s3cret").replace("$2b$", "$2y$")
    assert parse_credentials(f"a:{form}")["a"].kind == "bcrypt"
    assert bcrypt.checkpw(b"s3cret", form.encode())


@pytest.mark.parametrize(
    ("users", "says"),
    [
        ("alice:one,hunter2", "entry 2 is not name:password"),
        (":hunter2", "entry 1 has no usable name"),
        ("alice:", "entry 1 (alice) has an empty password"),
        ("alice:hunter2,alice:hunter2", "the name alice is there twice"),
        ("alice:$2b$12$hunter2", "looks like a hash but is no complete bcrypt hash"),
        ("alice:$apr1$hunter2$x", "looks like a hash"),
        ("alice:{SHA}hunter2", "looks like a hash"),
        ("alice:$2b$31$" + "hunter2" + "a" * 46, "bcrypt cost 31"),
    ],
)
def test_malformed_users_are_refused_without_the_password(users: str, says: str) -> None:
    text = problems(users=users)
    assert says in text
    assert "hunter2" not in text


def test_one_name_in_both_lists_is_refused() -> None:
    assert "the name a is both a user and an operator" in problems(users="a:b", operators="a:c")


def test_secrets_are_never_shown() -> None:
    settings = Settings(users="alice:hunter2", redis_url="redis://:hunter2@localhost")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.credentials())
    assert "hunter2" not in settings.model_dump_json()
    for wrong in ("http://:hunter2@h", "redis://:hunter2@h:many", "redis://h:6379/hunter2"):
        assert "hunter2" not in problems(redis_url=wrong)
    indexed = Settings(search_index="postgresql://ackgate:hunter2@db/ackgate")
    assert "hunter2" not in repr(indexed) + indexed.model_dump_json()
    for wrong in ("postgresql://a:hunter2@h:many/d", "mysql://a:hunter2@h/d", "sqlite3:hunter2"):
        assert "search-index" in problems(search_index=wrong)
        assert "hunter2" not in problems(search_index=wrong)


def test_an_index_in_postgresql_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)  # as if it were not installed
    found = problems(search_index="postgresql://ackgate:hunter2@db/ackgate")
    assert "pip install 'ackgate[postgres]'" in found
    assert "hunter2" not in found


def test_hash_password_round_trip_and_limits() -> None:
    form = hash_password("correct horse")
    assert parse_credentials(f"a:{form}")["a"].kind == "bcrypt"
    assert bcrypt.checkpw(b"correct horse", form.encode())
    for wrong in ("", "x" * 73, "a\0b"):
        with pytest.raises(CredentialsError):
            hash_password(wrong)


# ----------------------------------------------------------------------------- safety


def test_no_users_refuse_to_start() -> None:
    assert unsafe() == ["no users: set ACKGATE_USERS, or use --dev for development"]
    assert "no users" in unsafe(operators="ops:long")[0]


@pytest.mark.parametrize("name", ["ditto", "user2"])
def test_default_passwords_refuse_to_start_plain_and_hashed(name: str) -> None:
    assert "still the default password" in unsafe(users=f"{name}:{name}")[0]
    assert "still the default password" in unsafe(users=f"{name}:{hashed(name)}")[0]
    load({"users": f"{name}:another"}).settings.check_safe()
    load({"users": f"{name}:{hashed('another')}"}).settings.check_safe()


def test_default_operator_refuses_to_start_with_all_reasons() -> None:
    reasons = unsafe(operators="devops:foobar")
    assert len(reasons) == 2
    assert reasons[1].startswith("devops: still the default password")


def test_operators_may_be_missing() -> None:
    settings = load({"users": "alice:long"}).settings
    settings.check_safe()
    assert not any(credential.operator for credential in settings.credentials().values())


def test_development_has_the_default_users() -> None:
    settings = Settings(dev=True)
    settings.check_safe()
    shown = {
        name: (credential.secret.get_secret_value(), credential.operator)
        for name, credential in settings.credentials().items()
    }
    assert shown == {
        "ditto": ("ditto", False),
        "user2": ("user2", False),
        "devops": ("foobar", True),
    }


def test_development_keeps_users_that_are_set() -> None:
    credentials = Settings(dev=True, users="alice:long").credentials()
    assert set(credentials) == {"alice", "devops"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_default_passwords_stay_on_this_machine(host: str) -> None:
    assert "other machines reach" in unsafe(dev=True, host=host)[0]
    Settings(dev=True, host=host, dev_exposed=True).check_safe()
    Settings(dev=True, host=host, users="a:long", operators="b:long").check_safe()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_this_machine(host: str) -> None:
    Settings(dev=True, host=host).check_safe()


# ------------------------------------------------------------------------------- page


def test_page_is_current_and_names_every_setting() -> None:
    assert settings_page.is_current(ROOT / settings_page.PAGE), "run: ackgate config page --write"
    for name in Settings.model_fields:
        assert f"| `{name}` | `{env_name(name)}` |" in settings_page.render()
