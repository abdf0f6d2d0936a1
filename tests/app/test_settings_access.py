"""Settings of proxies and token issuers: how they are written, and what is too careless."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.access import authenticator_of
from app.cli import main
from app.settings import Settings, SettingsError, UnsafeSettings, load
from tests.issuers import claims, key, key_set

ISSUER = "https://auth.example.org/realms/main"
GOOD = {"issuer": ISSUER, "audiences": ["ackgate"]}


def problems(**options: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(options)
    return str(caught.value)


def unsafe(**options: Any) -> list[str]:
    with pytest.raises(UnsafeSettings) as caught:
        load(options).settings.check_safe()
    return caught.value.problems


# ------------------------------------------------------------------ how they are written


def test_lists_and_tables_of_the_file_and_of_the_environment_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ackgate.toml").write_text(
        f"""
        operator_subjects = ["kc:ops", "nginx:carol"]
        pre_authentication = "header"
        trusted_proxies = ["10.1.0.0/16", "10.2.0.1"]
        [jwt_issuers.kc]
        issuer = "{ISSUER}"
        audiences = ["ackgate", "other"]
        subjects = ["{{{{ jwt:sub }}}}", "{{{{ jwt:groups }}}}"]
        algorithms = ["ES256"]
        """
    )
    from_file = load().settings
    monkeypatch.setenv("ACKGATE_OPERATOR_SUBJECTS", "kc:ops, nginx:carol")
    monkeypatch.setenv("ACKGATE_PRE_AUTHENTICATION", "Header")
    monkeypatch.setenv("ACKGATE_TRUSTED_PROXIES", " 10.1.0.0/16,10.2.0.1 ")
    issuer = {
        "issuer": ISSUER,
        "audiences": "ackgate,other",
        "subjects": ["{{ jwt:sub }}", "{{ jwt:groups }}"],
        "algorithms": ["ES256"],
    }
    monkeypatch.setenv("ACKGATE_JWT_ISSUERS", json.dumps({"kc": issuer}))
    from_environment = load()
    assert from_environment.settings == from_file
    assert from_environment.origins["jwt_issuers"] == "env"
    assert from_file.trusted_proxies == (ip_network("10.1.0.0/16"), ip_network("10.2.0.1/32"))
    assert from_file.operator_subjects == ("kc:ops", "nginx:carol")
    from_file.check_safe()


def test_defaults_let_nobody_in_but_users() -> None:
    settings = Settings()
    assert settings.pre_authentication == "off"
    assert settings.trusted_proxies == (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    assert (settings.jwt_issuers, settings.operator_subjects) == ({}, ())


@pytest.mark.parametrize(
    ("issuers", "says"),
    [
        ("{", "--jwt-issuers: not a JSON object"),
        ("[]", "--jwt-issuers: Input should be a valid dictionary"),
        ({"kc": {}}, "--jwt-issuers: kc: issuer: Field required"),
        ({"kc": {"issuer": "auth.example.org"}}, "kc: issuer: not an https:// URL"),
        ({"kc": {"issuer": "https://u:p@auth.example.org"}}, "has no user"),
        ({"kc": {"issuer": "https://auth.example.org/?a=b"}}, "has no user, no ?"),
        ({"kc": {**GOOD, "jwks": "/no/such/file"}}, "there is no file /no/such/file"),
        ({"kc": {**GOOD, "algorithms": ["none"]}}, "kc: algorithms: 0: Input should be 'RS256'"),
        ({"kc": {**GOOD, "algorithms": ["HS256"]}}, "kc: algorithms: 0"),
        ({"kc": {**GOOD, "algorithms": []}}, "kc: algorithms"),
        ({"kc": {**GOOD, "subjects": []}}, "kc: subjects"),
        ({"kc": {**GOOD, "subjects": ["{{ jwt:sub"]}}, "kc: subjects: expected '}}'"),
        ({"kc": {**GOOD, "conditions": ["{{ header:x }}"]}}, "unknown placeholder header:x"),
        ({"kc": {**GOOD, "audience": ["x"]}}, "kc: audience: Extra inputs"),
        ({"nginx": GOOD}, "nginx is the first part of the subjects of users"),
        ({"a:b": GOOD}, "'a:b' cannot be the first part"),
        ({"a": GOOD, "b": GOOD}, f"the issuer {ISSUER} is there twice"),
    ],
)
def test_issuers_that_cannot_be_used(issuers: Any, says: str) -> None:
    assert says in problems(jwt_issuers=issuers)


@pytest.mark.parametrize(
    "text", ["proxy.example.org", "10.0.0.1/8", "10.0.0.0/33", "::ffff:0:0/96"]
)
def test_networks_that_are_none(text: str) -> None:
    assert "--trusted-proxies" in problems(trusted_proxies=text)


def test_config_show_prints_them() -> None:
    environment = {
        "ACKGATE_JWT_ISSUERS": json.dumps({"kc": GOOD}),
        "ACKGATE_OPERATOR_SUBJECTS": "kc:a,kc:b",
    }
    shown = CliRunner().invoke(main, ["config", "show", "--json"], env=environment)
    values = {name: one["value"] for name, one in json.loads(shown.output)["settings"].items()}
    assert values["jwt_issuers"]["kc"]["issuer"] == ISSUER
    assert values["operator_subjects"] == ["kc:a", "kc:b"]
    assert values["trusted_proxies"] == ["127.0.0.0/8", "::1/128"]
    plain = CliRunner().invoke(main, ["config", "show"], env=environment).output
    assert "kc:a,kc:b" in plain
    assert "127.0.0.0/8,::1/128" in plain


# ------------------------------------------------------------------------------ safety


@pytest.mark.parametrize("network", ["0.0.0.0/0", "::/0", "0.0.0.0/1", "128.0.0.0/1", "2000::/3"])
def test_a_proxy_is_not_everybody(network: str) -> None:
    given = {"users": "a:long", "trusted_proxies": f"10.0.0.0/8,{network}"}
    (reason,) = unsafe(**given, pre_authentication="header")
    assert reason.startswith(f"trusted_proxies: {network} is about everybody")
    load(given).settings.check_safe()  # nobody is believed
    load({**given, "pre_authentication": "query", "dev": True}).settings.check_safe()


def test_development_trusts_everybody_on_its_own_machine_only() -> None:
    given: dict[str, Any] = {
        "users": "a:long", "operators": "b:long", "dev": True, "host": "0.0.0.0",
        "pre_authentication": "header", "trusted_proxies": "0.0.0.0/0",
    }  # fmt: skip
    assert "about everybody" in unsafe(**given)[0]
    load({**given, "dev_exposed": True}).settings.check_safe()


def test_keys_come_by_https() -> None:
    for issuer in (
        {"issuer": "http://auth.example.org", "audiences": ["x"]},
        {**GOOD, "jwks": "http://auth.example.org/keys"},
    ):
        (reason,) = unsafe(jwt_issuers={"kc": issuer})
        assert "whoever is on the way" in reason
        load({"jwt_issuers": {"kc": issuer}, "dev": True}).settings.check_safe()
    # The claim may be any URL where the keys come another way.
    other = {**GOOD, "issuer": "http://auth.example.org", "jwks": "https://auth.example.org/keys"}
    load({"jwt_issuers": {"kc": other}}).settings.check_safe()


def test_tokens_for_other_applications_are_not_taken_by_accident() -> None:
    (reason,) = unsafe(jwt_issuers={"kc": {"issuer": ISSUER}})
    assert "no audiences" in reason
    for more in ({"audiences": ["*"]}, {"conditions": ["{{ jwt:azp }}"]}):
        load({"jwt_issuers": {"kc": {"issuer": ISSUER, **more}}}).settings.check_safe()


def test_users_may_be_missing_if_there_is_another_way_in() -> None:
    load({"jwt_issuers": {"kc": GOOD}}).settings.check_safe()
    load({"pre_authentication": "header"}).settings.check_safe()
    assert "no users" in unsafe(trusted_proxies="10.0.0.0/8")[0]


# ------------------------------------------------------------------------------ put together


async def test_a_file_of_keys_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(key_set(key())))
    settings = load({"jwt_issuers": {"kc": {**GOOD, "jwks": "keys.json"}}}).settings
    settings.check_safe()
    authenticator = authenticator_of(settings)
    principal = await authenticator.check_token(key().token(claims(ISSUER)))
    assert principal.subjects == ("kc:alice",)
    await authenticator.close()
