"""JSON Web Tokens with real keys: what is taken, what is refused, and which keys are known."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from acks.errors import GatewayError
from app.api.auth import Authenticator, Principal
from app.credentials import parse_credentials
from app.jwt_keys import KEEP, REFRESH, RETRY, UNKNOWN_EVERY, IssuerKeys, KeysUnavailable, read_keys
from app.jwt_source import SourceError, source
from app.jwt_tokens import MAX_TOKEN_CHARS, Tokens
from app.settings_access import ALGORITHMS, JwtIssuer
from tests.issuers import DISCOVERY, Json, Provider, claims, encoded, key, key_set, provider
from tests.servers import wait_for
from tests.streams import until

ISSUER = "https://issuer.test"


def tokens(place: Path, *keys: Any, name: str = "acme", **options: Any) -> Tokens:
    """Tokens of ``ISSUER``, whose keys are in a file."""
    file = place / f"{name}.json"
    file.write_text(json.dumps(key_set(*keys)))
    given: Json = {"issuer": ISSUER, "jwks": str(file), "audiences": ["ackgate"], **options}
    return Tokens({name: JwtIssuer(**given)}, insecure=False)


async def refused(verifier: Tokens, token: str, says: str = "") -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await verifier.verify(token)
    assert caught.value.status == 401, caught.value.to_json()
    assert says in f"{caught.value.message} {caught.value.description}"
    assert token == "" or token not in str(caught.value.to_json())
    return caught.value


# ------------------------------------------------------------------------------ what holds


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_every_algorithm_of_the_list_is_verified(tmp_path: Path, algorithm: str) -> None:
    signer = key("k", algorithm)
    said = claims(ISSUER)
    verified = await tokens(tmp_path, key(), signer).verify(signer.token(said))
    assert verified.subjects == ("acme:alice",)
    assert verified.expires == said["exp"]
    assert time.time() < verified.until <= said["exp"]


async def test_a_key_that_names_no_algorithm_fits_all_of_its_kind(tmp_path: Path) -> None:
    verifier = tokens(tmp_path, key("k", "RS256").jwk(alg=None, use=None))
    for algorithm in ("RS256", "PS512"):
        token = jwt.encode(claims(ISSUER), key("k").private, algorithm, headers={"kid": "k"})
        assert (await verifier.verify(token)).subjects == ("acme:alice",)


async def test_a_token_that_names_no_key_needs_a_single_one(tmp_path: Path) -> None:
    nameless = key("one").token(claims(ISSUER), kid=None)
    single = tokens(tmp_path, key("one"), key("two", "ES256"), name="a")
    assert (await single.verify(nameless)).subjects == ("a:alice",)
    several = tokens(tmp_path, key("one"), key("three"), name="b")
    await refused(several, nameless, "no such key")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"exp": -15}, "expired"),
        ({"nbf": 15}, "not valid yet"),
        ({"exp": None}, "lacks the claim 'exp'"),
        ({"aud": "another"}, "somebody else"),
        ({"aud": ["another", "ackgate-2"]}, "somebody else"),
        ({"aud": {"ackgate": 1}}, "somebody else"),
        ({"aud": None}, "lacks the claim 'aud'"),
        ({"aud": ""}, "lacks the claim 'aud'"),
        ({"sub": None}, "no subject"),
        ({"sub": ""}, "no subject"),
        ({"sub": {"a": 1}}, "no subject"),
        ({"exp": "soon"}, "malformed"),
        ({"nbf": [1]}, "malformed"),
    ],
    ids=str,
)
async def test_claims_that_do_not_hold(tmp_path: Path, wrong: Json, says: str) -> None:
    now = time.time()
    times = {name: now + value for name, value in wrong.items() if isinstance(value, int)}
    token = key().token(claims(ISSUER, **{**wrong, **times}))
    problem = await refused(tokens(tmp_path, key()), token, says)
    assert problem.code == "gateway:authentication.failed"
    assert problem.message == "The JWT could not be verified."


@pytest.mark.parametrize("times", [{"exp": -5}, {"nbf": 5}, {"iat": 1000}, {"exp": 10**18}])
async def test_clocks_may_differ_a_little(tmp_path: Path, times: dict[str, int]) -> None:
    moved = {name: int(time.time()) + offset for name, offset in times.items()}
    verified = await tokens(tmp_path, key()).verify(key().token(claims(ISSUER, **moved)))
    assert verified.subjects == ("acme:alice",)


async def test_one_audience_of_several_is_enough_and_any_may_be_allowed(tmp_path: Path) -> None:
    token = key().token(claims(ISSUER, aud=["x", "other"]))
    verifier = tokens(tmp_path, key(), audiences=["ackgate", "other"])
    assert (await verifier.verify(token)).subjects
    for audiences in (["*"], []):
        assert (await tokens(tmp_path, key(), audiences=audiences).verify(token)).subjects


# ------------------------------------------------------------------------------ attacks


def unsigned(said: Json, **header: object) -> str:
    return f"{encoded({'alg': 'none', 'typ': 'JWT', **header})}.{encoded(said)}."


def by_hmac(said: Json, secret: bytes, **header: object) -> str:
    signed = f"{encoded({'alg': 'HS256', 'typ': 'JWT', **header})}.{encoded(said)}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), 'sha256'))}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, ["none"], 7])
async def test_unsigned_tokens_are_refused(tmp_path: Path, algorithm: object) -> None:
    said = claims(ISSUER)
    verifier = tokens(tmp_path, key())
    for header in ({}, {"kid": "one"}):
        await refused(verifier, unsigned(said, **{**header, "alg": algorithm}), "not allowed")


async def test_a_public_key_is_no_shared_secret(tmp_path: Path) -> None:
    public = key()
    document = json.dumps(public.jwk()).encode()
    der = public.jwk()["n"].encode()
    for secret in (public.pem, public.pem.rstrip(), document, der, b""):
        for header in ({"kid": "one"}, {}):
            token = by_hmac(claims(ISSUER), secret, **header)
            await refused(tokens(tmp_path, public), token, "not allowed")


async def test_a_shared_secret_among_the_keys_counts_for_nothing(tmp_path: Path) -> None:
    secret = {"kty": "oct", "k": encoded(b"x" * 32), "kid": "s", "alg": "HS256"}
    verifier = tokens(tmp_path, key(), secret)
    await refused(verifier, by_hmac(claims(ISSUER), b"x" * 32, kid="s"), "not allowed")


async def test_a_key_is_used_for_its_own_algorithm_only(tmp_path: Path) -> None:
    token = jwt.encode(claims(ISSUER), key().private, "PS256", headers={"kid": "one"})
    await refused(tokens(tmp_path, key()), token, "no such key")
    narrow = tokens(tmp_path, key(), algorithms=["ES256"])
    await refused(narrow, key().token(claims(ISSUER)), "not allowed")


@pytest.mark.parametrize(
    "kid",
    ["../../../../dev/null", "/etc/passwd", "' OR 1=1 --", "", "one\0", "ONE", "file:///one", "*"],
)
async def test_a_kid_is_only_a_name(tmp_path: Path, kid: str) -> None:
    verifier = tokens(tmp_path, key())
    await refused(verifier, key().token(claims(ISSUER), kid=kid), "no such key")
    await refused(verifier, by_hmac(claims(ISSUER), b"", kid=kid), "not allowed")


async def test_keys_and_addresses_in_a_token_are_not_believed(tmp_path: Path) -> None:
    attacker = key("evil")
    verifier = tokens(tmp_path, key())
    with provider(attacker) as theirs:
        for extra in (
            {"jwk": attacker.jwk()},
            {"jwk": attacker.jwk(kid="one"), "kid": "one"},
            {"jku": theirs.issuer + "/keys"},
            {"x5u": theirs.issuer + "/keys", "kid": "one"},
            {"x5c": [encoded(attacker.pem)], "kid": "one"},
        ):
            await refused(verifier, attacker.token(claims(ISSUER), **extra))
        await refused(verifier, attacker.token(claims(theirs.issuer)), "is not supported")
        assert theirs.asked == []


async def test_what_was_changed_after_signing_is_refused(tmp_path: Path) -> None:
    verifier = tokens(tmp_path, key())
    head, _, signature = key().token(claims(ISSUER)).split(".")
    changed = encoded(claims(ISSUER, sub="mallory"))
    await refused(verifier, f"{head}.{changed}.{signature}", "signature")
    await refused(verifier, f"{head}.{changed}.", "signature")
    longer = encoded({"alg": "RS256", "kid": "one", "crit": ["exp"]})
    await refused(verifier, f"{longer}.{changed}.{signature}", "It is not a JWT")


@pytest.mark.parametrize(
    "text",
    ["", "x", "a.b.c", "..", "\ud800.x.y", "é.é.é", "." * 3000, "x" * (MAX_TOKEN_CHARS + 1)],
    ids=range(8),
)
async def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    await refused(tokens(tmp_path, key()), text)


@pytest.mark.parametrize("issuer", ["https://issuer.test/", "https://evil.test", 7, ["x"], None])
async def test_other_issuers_are_refused(tmp_path: Path, issuer: object) -> None:
    token = unsigned({**claims(ISSUER), "iss": issuer}, alg="RS256")
    problem = await refused(tokens(tmp_path, key()), token)
    assert problem.code == "gateway:jwt.issuer.notsupported"
    assert problem.message == f"The JWT issuer '{issuer}' is not supported."


async def test_an_issuer_cannot_speak_for_another_one(tmp_path: Path) -> None:
    one, two = tmp_path / "1.json", tmp_path / "2.json"
    one.write_text(json.dumps(key_set(key("one"))))
    two.write_text(json.dumps(key_set(key("three"))))
    verifier = Tokens(
        {
            "a": JwtIssuer(issuer=ISSUER, jwks=str(one)),
            "b": JwtIssuer(issuer="https://b.test", jwks=str(two)),
        },
        insecure=False,
    )
    own = await verifier.verify(key("three").token(claims("https://b.test")))
    assert own.subjects == ("b:alice",)
    await refused(verifier, key("three").token(claims(ISSUER)), "no such key")
    await refused(verifier, key("three").token(claims(ISSUER), kid="one"), "signature")


# ------------------------------------------------------------------------------ subjects


async def test_subjects_come_from_templates_in_their_order(tmp_path: Path) -> None:
    verifier = tokens(
        tmp_path,
        key(),
        subjects=[
            "{{ jwt:sub }}",
            "role-{{ jwt:realm_access/roles }}",
            "{{ jwt:https://claims.test/groups }}",
            "{{ jwt:absent }}",
            "{{ jwt:scope | fn:split(' ') | fn:filter('like','thing:*') }}",
            "{{ jwt:level }}",
        ],
    )
    said = claims(
        ISSUER,
        realm_access={"roles": ["admin", "user", "admin", {"x": 1}]},
        scope="openid thing:read thing:write",
        level=7,
        **{"https://claims.test/groups": ["g1"]},
    )
    assert (await verifier.verify(key().token(said))).subjects == (
        "acme:alice", "acme:role-admin", "acme:role-user", "acme:g1", "acme:thing:read",
        "acme:thing:write", "acme:7",
    )  # fmt: skip


async def test_too_many_subjects(tmp_path: Path) -> None:
    verifier = tokens(tmp_path, key(), subjects=["{{ jwt:groups }}"])
    groups = [f"g{number}" for number in range(101)]
    assert len((await verifier.verify(key().token(claims(ISSUER, groups=groups[:100]))))[0]) == 100
    with pytest.raises(GatewayError) as caught:
        await verifier.verify(key().token(claims(ISSUER, groups=groups)))
    assert (caught.value.status, caught.value.code) == (431, "headers.too.large")


async def test_all_conditions_must_hold(tmp_path: Path) -> None:
    conditions = ["{{ jwt:aud | fn:filter('eq','ackgate') }}", "{{ jwt:verified }}"]
    verifier = tokens(tmp_path, key(), audiences=["*"], conditions=conditions)
    assert (await verifier.verify(key().token(claims(ISSUER, verified=True)))).subjects
    for wrong in ({}, {"verified": True, "aud": "other"}):
        problem = await refused(verifier, key().token(claims(ISSUER, **wrong)))
        assert problem.code == "gateway:jwt.condition.failed"


# ------------------------------------------------------------------------------ keys


@pytest.fixture
def issuer() -> Iterator[Provider]:
    with provider(key("one")) as one:
        yield one


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def keys_of(one: Provider, clock: Clock, jwks: str | None = None) -> IssuerKeys:
    return IssuerKeys("acme", source(one.issuer, jwks, insecure=True), clock)


async def knows(keys: IssuerKeys, kid: str) -> bool:
    return await keys.find(kid, "RS256") is not None


async def test_keys_are_found_by_discovery_and_kept_for_an_hour(issuer: Provider) -> None:
    clock = Clock()
    keys = keys_of(issuer, clock)
    assert all([await knows(keys, "one") for _ in range(10)])
    assert issuer.asked == ["/realm" + DISCOVERY, "/realm/keys"]
    clock.now += REFRESH - 1
    assert await knows(keys, "one")
    assert issuer.fetches == 1
    clock.now += KEEP - REFRESH + 1
    issuer.keys = [key("three")]
    assert not await knows(keys, "one")
    assert await knows(keys, "three")
    assert issuer.fetches == 2


async def test_keys_are_renewed_beside_the_requests_before_they_are_too_old(
    issuer: Provider,
) -> None:
    clock = Clock()
    keys = keys_of(issuer, clock)
    assert await knows(keys, "one")
    clock.now += REFRESH
    issuer.stop()
    assert await knows(keys, "one")
    await keys.close()
    issuer.start()
    clock.now += RETRY
    found = await keys.find("one", "RS256")
    assert found is not None
    assert found.counts == KEEP - REFRESH - RETRY

    async def are_new() -> bool:
        found = await keys.find("one", "RS256")
        assert found is not None
        return found.counts >= KEEP

    await until(are_new)
    assert issuer.fetches == 2


async def test_an_unknown_key_is_looked_for_but_not_too_often(issuer: Provider) -> None:
    clock = Clock()
    keys = keys_of(issuer, clock)
    assert not await knows(keys, "two")  # just fetched: there is nothing newer
    assert issuer.fetches == 1
    issuer.keys.append(key("two"))
    assert await knows(keys, "two")
    assert issuer.fetches == 2
    issuer.keys.append(key("three"))
    for number in range(50):
        assert not await knows(keys, f"guess-{number}")
        assert not await knows(keys, "three")
    assert issuer.fetches == 2
    clock.now += UNKNOWN_EVERY
    assert await knows(keys, "three")
    assert issuer.fetches == 3


async def test_many_at_once_are_one_fetch(issuer: Provider) -> None:
    keys = keys_of(issuer, Clock())
    found = await asyncio.gather(*(knows(keys, "one") for _ in range(50)))
    assert all(found)
    assert issuer.fetches == 1


async def test_one_who_goes_away_does_not_end_the_fetch_for_the_others(issuer: Provider) -> None:
    keys = keys_of(issuer, Clock())
    first, second = (asyncio.create_task(knows(keys, "one")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    assert issuer.fetches == 1


async def test_a_provider_that_is_down_is_asked_again_later(issuer: Provider) -> None:
    clock = Clock()
    keys = keys_of(issuer, clock)
    issuer.answers["/realm/keys"] = (500, b"", {})
    for _ in range(5):
        with pytest.raises(KeysUnavailable, match="answered 500"):
            await knows(keys, "one")
    assert issuer.fetches == 1
    clock.now += RETRY
    del issuer.answers["/realm/keys"]
    assert await knows(keys, "one")
    clock.now += KEEP
    issuer.stop()
    with pytest.raises(KeysUnavailable):
        await knows(keys, "one")


async def test_a_token_counts_no_longer_than_the_keys_it_was_checked_with(issuer: Provider) -> None:
    verifier = Tokens({"acme": JwtIssuer(issuer=issuer.issuer)}, insecure=True)
    verified = await verifier.verify(issuer.token(key("one"), lifetime=100_000))
    assert verified.until <= time.time() + KEEP < verified.expires


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("/keys", (302, b"", {"location": "/elsewhere"}), "answered 302"),
        ("/keys", (200, b"{}", {}), "not a JSON Web Key Set"),
        ("/keys", (200, b"<html>", {}), "unexpected"),
        ("/keys", (200, b'{"keys":[]}', {}), "no key"),
        ("/keys", (200, b" " * 300_000, {}), "more than"),
        ("/keys", (200, b"x", {"content-encoding": "gzip"}), "compressed"),
        (DISCOVERY, (200, b"[]", {}), "no jwks_uri"),
        (DISCOVERY, (200, b"no", {}), "not JSON"),
        (DISCOVERY, (200, b'{"jwks_uri":7}', {}), "no jwks_uri"),
        (DISCOVERY, (200, b'{"jwks_uri":"http://h/","issuer":"other"}', {}), "issuer is not"),
    ],
    ids=str,
)
async def test_answers_of_a_provider_that_help_nobody(
    issuer: Provider, path: str, answer: Any, says: str
) -> None:
    issuer.answers["/realm" + path] = answer
    with pytest.raises(KeysUnavailable, match=says):
        await knows(keys_of(issuer, Clock()), "one")


async def test_a_fetch_has_one_deadline_for_all_that_belongs_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it does: discovery is two requests, and a file may be on a disk that hangs."""

    class Silent:
        async def read(self) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr("app.jwt_keys.FETCH_DEADLINE", 0.05)
    keys = IssuerKeys("acme", Silent())
    async with asyncio.timeout(10):
        with pytest.raises(KeysUnavailable, match=r"no answer within 0\.05 s"):
            await keys.find("one", "RS256")


async def test_keys_by_http_are_for_development_only(issuer: Provider) -> None:
    for jwks in (None, issuer.issuer + "/keys"):
        with pytest.raises(SourceError, match="not an https:// URL"):
            await source(issuer.issuer, jwks, insecure=False).read()
    assert issuer.asked == []
    assert await source(issuer.issuer, issuer.issuer + "/keys", insecure=True).read()


async def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(SourceError, match="No such file"):
        await source(ISSUER, str(file), insecure=False).read()
    file.write_bytes(b" " * 300_000)
    with pytest.raises(SourceError, match="more than"):
        await source(ISSUER, str(file), insecure=False).read()


def test_unusable_keys_are_left_out() -> None:
    good = key("good", "ES256")
    private = {**key("one").jwk(kid="p"), "d": "x", "p": "x"}
    unusable: list[Any] = [
        key("weak", bits=1024).jwk(),
        key("one").jwk(use="enc"),
        key("one").jwk(key_ops=["sign"]),
        key("one").jwk(alg="RSA-OAEP"),
        key("one").jwk(alg="HS256"),
        key("one").jwk(alg=["RS256"]),
        key("one").jwk(n=None),
        key("one").jwk(n="!"),
        key("one").jwk(kty={}),
        key("one").jwk(key_ops=None, use=["sig"]),
        good.jwk(crv="P-384"),
        good.jwk(crv="secp256k1", alg=None),
        good.jwk(x="AA"),
        {"kty": "oct", "k": "eA"},
        {"kty": "OKP", "crv": "Ed25519", "x": "x"},
        None,
        "key",
        7,
    ]
    found = read_keys(json.dumps({"keys": [*unusable, private, good.jwk()]}).encode())
    assert [one.kid for one in found] == ["p", "good"]
    assert not hasattr(found[0].verifier("RS256").key, "private_numbers")


# ------------------------------------------------------------------------------ what is known


async def test_a_token_is_known_until_it_expires(tmp_path: Path) -> None:
    authenticator = Authenticator({}, tokens=tokens(tmp_path, key()))
    token = key().token(claims(ISSUER, lifetime=2))
    header = f"Bearer {token}".encode()
    assert authenticator.known(header) is None
    principal = await authenticator.check(header)
    assert authenticator.known(header) is principal
    assert await authenticator.check_token(token) is principal
    assert principal.subjects == ("acme:alice",)
    assert principal.expires is not None
    await wait_for(lambda: authenticator.known(header) is None, what="the token's end")
    assert time.time() >= principal.expires
    assert not principal.is_known()


async def test_tokens_do_not_push_passwords_out_of_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token can be written in many ways; a password that is not known costs a bcrypt."""
    monkeypatch.setattr("app.api.auth.REMEMBERED", 3)
    users = parse_credentials("ditto:secret")
    authenticator = Authenticator(users, tokens=tokens(tmp_path, key()))
    password = b"Basic " + base64.b64encode(b"ditto:secret")
    await authenticator.check(password)
    token = key().token(claims(ISSUER)).encode()
    written = [b"Bearer" + b" " * blanks + token for blanks in range(1, 6)]
    for header in written:
        await authenticator.check(header)
    assert [authenticator.known(header) is not None for header in written] == [False] * 2 + [
        True
    ] * 3
    assert authenticator.known(password) is not None


@pytest.mark.parametrize("name", ["a\r\nb", "a\x00", "a\x7f", "a\ud800", "x" * 252], ids=ascii)
async def test_what_no_policy_can_name_is_no_subject(tmp_path: Path, name: str) -> None:
    verifier = tokens(tmp_path, key(), subjects=["{{ jwt:sub }}", "{{ jwt:groups }}"])
    verified = await verifier.verify(key().token(claims(ISSUER, sub=name, groups=["g"])))
    assert verified.subjects == ("acme:g",)
    await refused(verifier, key().token(claims(ISSUER, sub=name)), "no subject")


async def test_a_subject_is_as_long_as_a_policy_takes_it(tmp_path: Path) -> None:
    verified = await tokens(tmp_path, key()).verify(key().token(claims(ISSUER, sub="x" * 251)))
    assert len(verified.subjects[0]) == 256


async def test_what_a_condition_looks_at_may_be_long(tmp_path: Path) -> None:
    verifier = tokens(tmp_path, key(), conditions=["{{ jwt:scope }}"])
    assert await verifier.verify(key().token(claims(ISSUER, scope="read " * 100)))


async def test_operators_are_those_whom_the_settings_name(tmp_path: Path) -> None:
    verifier = tokens(tmp_path, key(), subjects=["{{ jwt:sub }}", "{{ jwt:groups }}"])
    authenticator = Authenticator({}, tokens=verifier, operators=["acme:ops", "acme:root"])

    async def asks(**said: object) -> Principal:
        return await authenticator.check_token(key().token(claims(ISSUER, **said)))

    assert not (await asks()).operator
    assert (await asks(groups=["dev", "ops"])).operator
    assert not (await asks(groups=["acme:ops"])).operator
