"""A RabbitMQ node of its own for tests: AMQP 0.9.1 and 1.0, plain and with TLS."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.store.embedded import ends_with_parent
from tests.brokers.authority import Authority
from tests.servers import free_port, wait_for_sync

START_WAIT = 60.0
STOP_WAIT = 30.0
USERS = {"ackgate": "p+w%2F@ :x", "reader": "reader"}
"""Passwords by user. ``reader`` may consume and write nothing."""

_HOMES = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))


def missing() -> str | None:
    """Why there can be no RabbitMQ here; None if there can."""
    for program in ("erl", "epmd"):
        if shutil.which(program) is None:
            return f"RabbitMQ needs {program}, which is not installed"
    return None if _HOMES else "rabbitmq-server is not installed"


class RabbitServer:
    """A node under a test's control: own name, own epmd, own data; plain port and TLS port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.tls_port, self._dist, self._epmd_port = _free_ports(4)
        self.authority = Authority()
        self._name = f"ackgate-{uuid.uuid4().hex[:8]}@localhost"
        self._node: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._configure()

    def url(self, user: str = "ackgate", password: str | None = None, *, tls: bool = False) -> str:
        """A URL of AMQP 0.9.1 for the virtual host ``/``."""
        word = _quoted(USERS.get(user, "") if password is None else password)
        scheme, port = ("amqps", self.tls_port) if tls else ("amqp", self.port)
        return f"{scheme}://{user}:{word}@localhost:{port}"

    def start(self) -> None:
        """Start on the data that is there, and wait until AMQP is answered."""
        assert self._node is None
        if self._epmd is None:
            self._epmd = self._spawn(
                ["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)]
            )
            wait_for_sync(lambda: _answers(self._epmd_port), 10, "start of epmd")
        self._node = self._spawn([str(_HOMES[-1] / "sbin" / "rabbitmq-server")])
        wait_for_sync(self._ready, START_WAIT, "start of RabbitMQ")

    def stop(self) -> None:
        """End the node in peace, and its epmd."""
        self.halt()
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            epmd.terminate()
            epmd.wait(STOP_WAIT)

    def halt(self) -> None:
        """End the node in peace; :meth:`start` brings it back on its data."""
        node, self._node = self._node, None
        if node is None:
            return
        node.send_signal(signal.SIGCONT)
        node.terminate()
        try:
            node.wait(STOP_WAIT)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()
            raise

    def kill9(self) -> None:
        """End the node without warning."""
        node, self._node = self._node, None
        assert node is not None
        node.kill()
        node.wait(STOP_WAIT)

    def pause(self) -> None:
        """Stop the node's process: its sockets stay open and nothing answers."""
        assert self._node is not None
        self._node.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused node go on."""
        assert self._node is not None
        self._node.send_signal(signal.SIGCONT)

    def _configure(self) -> None:
        files = self.authority.issue(self.directory)
        (self.directory / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        (self.directory / "definitions.json").write_text(json.dumps(_definitions()))
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.certfile = {files.certificate}\n"
            f"ssl_options.keyfile = {files.key}\n"
            "ssl_options.verify = verify_none\n"
            f"load_definitions = {self.directory / 'definitions.json'}\n"
            "num_acceptors.tcp = 2\n"
            "num_acceptors.ssl = 2\n"
            "vm_memory_high_watermark.absolute = 1GB\n"
            "disk_free_limit.absolute = 50MB\n"
            "log.file = false\n"
            "log.console = true\n"
            "log.console.level = warning\n"
        )

    def _environment(self) -> dict[str, str]:
        place = self.directory
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_"))},
            "HOME": str(place),  # Erlang makes its cookie here
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_CONF_ENV_FILE": str(place / "no-env-file"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "enabled_plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(place / "config"),
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the node: one process to end
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput +S 1:1 +SDcpu 1:1 +SDio 2 +A 2 +sbwt none +sbwtdcpu none +sbwtdio none"
                " -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.directory / "output").open("ab") as log:
            return subprocess.Popen(
                command,
                env=self._environment(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=ends_with_parent(),  # noqa: PLW1509 - two plain system calls
            )

    def _ready(self) -> bool:
        assert self._node is not None
        if self._node.poll() is not None:
            text = (self.directory / "output").read_text(errors="replace")
            raise AssertionError(f"RabbitMQ ended: {text[-3000:]}")
        return _greets(self.port) and _answers(self.tls_port)


def _free_ports(count: int) -> list[int]:
    """Different ports; :func:`tests.servers.free_port` may give the same one twice."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)


def _definitions() -> dict[str, Any]:
    def hashed(password: str) -> str:
        salt = secrets.token_bytes(4)
        return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()

    algorithm = "rabbit_password_hashing_sha256"
    rights = {"ackgate": (".*", ".*", ".*"), "reader": ("^$", "^$", ".*")}
    return {
        "users": [
            {
                "name": name,
                "password_hash": hashed(password),
                "hashing_algorithm": algorithm,
                "tags": [],
            }
            for name, password in USERS.items()
        ],
        "vhosts": [{"name": "/"}, {"name": "forbidden"}, {"name": "a/b"}],
        "permissions": [
            {"user": user, "vhost": "/", "configure": own, "write": write, "read": read}
            for user, (own, write, read) in rights.items()
        ]
        + [{"user": "ackgate", "vhost": "a/b", "configure": ".*", "write": ".*", "read": ".*"}],
    }


def _quoted(text: str) -> str:
    return "".join(c if c.isalnum() else "".join(f"%{b:02X}" for b in c.encode()) for c in text)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _greets(port: int) -> bool:
    """Whether the protocol header is answered by Connection.Start."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return probe.recv(1) == b"\x01"
    except OSError:
        return False


@contextmanager
def rabbit_server() -> Iterator[RabbitServer]:
    """A running node in a directory of its own; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ackgate-rabbit-", ignore_cleanup_errors=True) as place:
        server = RabbitServer(Path(place))
        try:
            server.start()
            yield server
        finally:
            server.stop()
