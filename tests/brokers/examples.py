"""The examples of the documentation, followed as they are written."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys

from tests.brokers.scenes import Operator
from tests.gateways import ROOT, Gateway, Json, http, thing

DEADLINE = 60.0


class Example:
    """Of a page in docs/connections: a program that declares, one that sends, and a document.

    ``broker`` is what the programs read from their environment.
    """

    def __init__(self, page: str, broker: str) -> None:
        text = (ROOT / "docs/connections" / page).read_text()
        self.declare, self.send = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.document: Json = json.loads(re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
        self._broker = broker

    async def run(self, program: str) -> str:
        """Run one of the programs; what it has printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program),
            env={**os.environ, "BROKER": self._broker},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE)
        assert process.returncode == 0, output.decode()
        return output.decode()

    async def works(self, gateway: Gateway) -> Json:
        """Create the connection, send a command and change the lamp: the ack of the target."""
        async with Operator(gateway) as operator, http(gateway) as client:
            dry_run = {"dry-run": "true"}
            path = "/api/2/connections"
            tried = await operator.client.post(path, json=self.document, params=dry_run)
            assert tried.status_code == 200, tried.text
            connection = await operator.create(self.document)
            lamp = thing("org.example:lamp-1")
            await client.put(lamp, json={"attributes": {"color": "red"}})
            printed = await self.run(self.send)
            assert printed.startswith("command-1 ")
            assert '"status":204' in printed
            acks = {"requested-acks": f'["twin-persisted","{connection}:events"]'}
            answer = await client.put(f"{lamp}/attributes/color", json="green", headers=acks)
            assert answer.status_code == 200, answer.text
            await operator.close(connection)
            await operator.client.delete(f"{path}/{connection}")
            ack: Json = answer.json()[f"{connection}:events"]
            return ack
