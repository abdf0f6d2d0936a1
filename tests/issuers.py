"""Token issuers for tests: real keys, tokens, and a small OpenID Connect provider by HTTP(S)."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from typing_extensions import override

Json = dict[str, Any]
_CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
DISCOVERY = "/.well-known/openid-configuration"


def encoded(part: Json | bytes) -> str:
    """A part of a token: Base64 for URLs, without padding."""
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class SigningKey:
    """A private key of an issuer; ``bits`` is the size of an RSA key."""

    def __init__(self, kid: str, algorithm: str = "RS256", bits: int = 2048) -> None:
        self.kid = kid
        self.algorithm = algorithm
        self.private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
        if algorithm in _CURVES:
            self.private = ec.generate_private_key(_CURVES[algorithm])
        else:
            self.private = rsa.generate_private_key(65537, bits)

    @property
    def pem(self) -> bytes:
        """The public key in the form in which people copy it about."""
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def jwk(self, **members: object) -> Json:
        """The public key as a JSON Web Key."""
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        public: Json = json.loads(algorithm.to_jwk(self.private.public_key()))
        made = {**public, "kid": self.kid, "use": "sig", "alg": self.algorithm, **members}
        return {name: value for name, value in made.items() if value is not None}

    def token(self, claims: Json, **header: object) -> str:
        """A token of this key; a header of None is left out."""
        named = {"kid": self.kid, **header}
        given = {name: value for name, value in named.items() if value is not None}
        return jwt.encode(claims, self.private, self.algorithm, headers=given)


_made = cache(SigningKey)


def key(kid: str = "one", algorithm: str = "RS256", bits: int = 2048) -> SigningKey:
    """A key that all tests share: RSA keys take their time."""
    return _made(kid, algorithm, bits)


def claims(issuer: str, **others: Any) -> Json:
    """What a token says: of ``issuer``, for the audience ``ackgate``, about ``alice``.

    ``lifetime`` is in seconds from now; a claim of None is left out.
    """
    now, lifetime = int(time.time()), others.pop("lifetime", 300.0)
    said = {"iss": issuer, "aud": "ackgate", "sub": "alice", "iat": now, "exp": now + lifetime}
    return {name: value for name, value in {**said, **others}.items() if value is not None}


def key_set(*keys: SigningKey | Json) -> Json:
    """A JSON Web Key Set."""
    return {"keys": [one.jwk() if isinstance(one, SigningKey) else one for one in keys]}


class Provider:
    """An OpenID Connect provider: its discovery document and its keys, and what was asked of it.

    ``answers`` replace the answer of a path: (status, body, headers).
    """

    def __init__(self, *keys: SigningKey, certificate: Path | None = None) -> None:
        self.keys: list[SigningKey | Json] = list(keys)
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self._certificate = certificate
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    @property
    def issuer(self) -> str:
        """Its URL."""
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}/realm"

    @property
    def fetches(self) -> int:
        """How often its keys were read."""
        return self.asked.count("/realm/keys")

    def token(self, key: SigningKey, **said: Any) -> str:
        """A good token of it; ``said`` as for :func:`claims`."""
        return key.token(claims(self.issuer, **said))

    def start(self) -> None:
        """Begin to answer, at the same port as before."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                status, body, headers = provider.answer(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            @override
            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        """Answer no more: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers for ``path``."""
        if path in self.answers:
            return self.answers[path]
        documents = {
            "/realm" + DISCOVERY: {"issuer": self.issuer, "jwks_uri": self.issuer + "/keys"},
            "/realm/keys": key_set(*self.keys),
        }
        document = documents.get(path)
        status = 404 if document is None else 200
        return status, json.dumps(document).encode(), {"content-type": "application/json"}


@contextmanager
def provider(*keys: SigningKey, certificate: Path | None = None) -> Iterator[Provider]:
    """A running provider; stopped at the end."""
    one = Provider(*keys, certificate=certificate)
    try:
        yield one
    finally:
        one.stop()


def issuers(one: Provider, **options: Any) -> str:
    """The setting for tokens of this provider; their subjects begin with ``acme:``."""
    given = {
        "issuer": one.issuer,
        "audiences": ["ackgate"],
        "subjects": ["{{ jwt:sub }}", "{{ jwt:groups }}"],
        **options,
    }
    return json.dumps({"acme": given})


def bearer(token: str) -> dict[str, str]:
    """Headers with this token."""
    return {"authorization": f"Bearer {token}"}


def certificate(directory: Path) -> Path:
    """A certificate for 127.0.0.1 with its key, which is its own authority, as a PEM file."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    file = directory / "certificate.pem"
    file.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file
