"""A process that is a Kafka broker: the simulated cluster of librdkafka, and a front for it.

librdkafka brings a cluster for tests that speaks Kafka's protocol on real sockets: topics,
producers, consumer groups with rebalances and commits; everything is kept in memory. It knows
neither TLS nor SASL, so a front of our own (kafka_front.py) stands before it when they are asked
for. Commands come as JSON lines on the standard input and are answered on the standard output.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import confluent_kafka

from tests.brokers.kafka_front import Front, Guard

BROKER = 1
"""The only broker's number."""
_PRODUCER = 0  # of rd_kafka_type_t


def _library() -> ctypes.CDLL:
    """The library that confluent-kafka has loaded already."""
    places = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(places.glob("librdkafka*.so*"))))
    handle, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("conf_new", handle, []),
        ("new", handle, [number, handle, text, ctypes.c_size_t]),
        ("mock_cluster_new", handle, [handle, number]),
        ("mock_cluster_bootstraps", text, [handle]),
        ("mock_topic_create", number, [handle, text, number, number]),
        ("mock_group_initial_rebalance_delay_ms", None, [handle, ctypes.c_int32]),
        ("mock_broker_set_down", number, [handle, ctypes.c_int32]),
        ("mock_broker_set_up", number, [handle, ctypes.c_int32]),
        ("mock_broker_set_host_port", None, [handle, ctypes.c_int32, text, number]),
        ("mock_topic_set_error", None, [handle, text, number]),
        (
            "mock_push_request_errors_array",
            None,
            [handle, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)],
        ),
        ("mock_clear_request_errors", None, [handle, ctypes.c_int16]),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Cluster:
    """The simulated cluster in this process, with one broker."""

    def __init__(self) -> None:
        self._library = _library()
        problem = ctypes.create_string_buffer(512)
        owner = self._call("new", _PRODUCER, self._call("conf_new"), problem, len(problem))
        if not owner:
            raise RuntimeError(problem.value.decode())
        self._cluster = self._call("mock_cluster_new", owner, 1)
        self._call("mock_group_initial_rebalance_delay_ms", self._cluster, 0)

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        address: bytes = self._call("mock_cluster_bootstraps", self._cluster)
        return int(address.decode().rpartition(":")[2])

    def advertise(self, port: int) -> None:
        """Have clients sent to another port."""
        self._call("mock_broker_set_host_port", self._cluster, BROKER, b"127.0.0.1", port)

    def topic(self, name: str, partitions: int) -> None:
        """Make a topic."""
        code = self._call("mock_topic_create", self._cluster, name.encode(), partitions, 1)
        if code:
            raise RuntimeError(f"topic {name}: error {code}")

    def topic_error(self, name: str, code: int) -> None:
        """Answer metadata requests about a topic with an error; 0 ends it."""
        self._call("mock_topic_set_error", self._cluster, name.encode(), code)

    def down(self) -> None:
        """Close all connections and the port; what was stored stays."""
        self._call("mock_broker_set_down", self._cluster, BROKER)

    def up(self) -> None:
        """Listen again, on the same port."""
        self._call("mock_broker_set_up", self._cluster, BROKER)

    def errors(self, api: int, codes: list[int]) -> None:
        """Answer the next requests of a kind with these errors."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._call("mock_push_request_errors_array", self._cluster, api, len(codes), array)

    def clear_errors(self, api: int) -> None:
        """No errors any more for requests of a kind."""
        self._call("mock_clear_request_errors", self._cluster, api)

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._library, f"rd_kafka_{name}")(*arguments)


async def _serve(guard: Guard | None) -> None:
    cluster = Cluster()
    port = cluster.port
    if guard is not None:
        front = Front(port, guard)
        port = await front.start()
        cluster.advertise(port)
    print(json.dumps({"port": port}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *arguments = json.loads(line)
        try:
            getattr(cluster, name)(*arguments)
            print(json.dumps({"done": name}), flush=True)
        except RuntimeError as problem:
            print(json.dumps({"problem": str(problem)}), flush=True)


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    asyncio.run(_serve(Guard(**options) if options else None))
