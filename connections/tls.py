"""TLS towards a broker, as a connection document asks for it (spec websocket-... 4.1)."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from typing import Any

from connections.driver import OpenError
from connections.model import Connection


def tls_context(connection: Connection) -> ssl.SSLContext | None:
    """What its client trusts and shows; None where its uri does not ask for TLS.

    Trusts ``ca`` alone where it is given, else the authorities of the system, and nobody is asked
    with ``validateCertificates`` false. Shows the certificate of credentials of type
    ``client-cert``. Raises OpenError for PEM texts that cannot be read.
    """
    if not connection.uri.secure:
        return None
    context = trusting(connection)
    if connection.credentials.get("type") == "client-cert":
        _show(context, connection.credentials)
    return context


def trusting(connection: Connection) -> ssl.SSLContext:
    """As :func:`tls_context`, whatever the uri, without a certificate of the client's own."""
    try:
        context = ssl.create_default_context(cadata=connection.ca)
    except (ssl.SSLError, ValueError) as problem:
        raise OpenError("misconfigured", "The text <ca> holds no certificate as PEM.") from problem
    if not connection.validate_certificates:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _show(context: ssl.SSLContext, credentials: Mapping[str, Any]) -> None:
    # The library reads a chain from files only. mkstemp makes them for the owner alone.
    handle, path = tempfile.mkstemp(prefix="ackgate-", suffix=".pem")
    try:
        with os.fdopen(handle, "w", encoding="ascii", errors="replace") as file:
            file.write(f"{credentials.get('cert', '')}\n{credentials.get('key', '')}\n")
        # Without a password of ours the library would ask for one on the terminal.
        context.load_cert_chain(path, password=lambda: "")
    except (ssl.SSLError, ValueError) as problem:
        text = "The credentials of type <client-cert> hold no certificate and key as PEM."
        raise OpenError("misconfigured", text) from problem
    finally:
        os.unlink(path)


def refused(problem: OSError | ValueError, host: str) -> OpenError:
    """What to raise for a connection that could not be made.

    A certificate that is not trusted is ``misconfigured``, and so is what cannot be the name of a
    host (ValueError); everything else is ``temporary``.
    """
    if isinstance(problem, ValueError):
        return OpenError("misconfigured", f"<{host}> is no name of a host.")
    if isinstance(problem, ssl.SSLCertVerificationError):
        reason = problem.verify_message or "certificate verify failed"
        return OpenError("misconfigured", f"The broker's certificate is not trusted: {reason}.")
    if isinstance(problem, ssl.SSLError):
        return OpenError("temporary", f"TLS failed: {problem.reason or problem}.")
    return OpenError("temporary", f"The broker cannot be reached: {problem.strerror or problem}.")
