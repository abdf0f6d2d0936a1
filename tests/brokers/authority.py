"""A certificate authority for tests: certificates of localhost, in PEM."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Files:
    """Where a certificate and its key were written."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; ``pem`` is what a client has to trust."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ackgate tests")])
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_AUTHORITY_USE, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        """The authority's own certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, directory: Path, name: str = "localhost") -> Files:
        """A certificate of ``name`` (and 127.0.0.1 for localhost), for servers and clients."""
        certificate, key = self.pair(name)
        files = Files(directory / f"{name}.crt", directory / f"{name}.key")
        files.certificate.write_text(certificate)
        files.key.write_text(key)
        return files

    def pair(self, name: str = "localhost") -> tuple[str, str]:
        """As :meth:`issue`, as texts: certificate and key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if name == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(subject, self._name, key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return (
            certificate.public_bytes(serialization.Encoding.PEM).decode(),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ).decode(),
        )


_AUTHORITY_USE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=2))
    )
