"""The demo's requests: what is asked, what must be answered, and what the answer means."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import httpx

from app.demo.processes import DemoFailed
from app.demo.screen import Screen, status_colour

THING: Final = "demo:lamp-1"
PERSISTED: Final = "twin-persisted"
WEBSOCKET: Final = "demo:websocket"
SPARK: Final = "spark:ingested"
NOBODY: Final = "nobody:there"
_ALL: Final = (PERSISTED, WEBSOCKET, SPARK)
_SPARE: Final = 10.0  # seconds that an answer may come after the request's own timeout


@dataclass(frozen=True)
class Act:
    """One request with ``requested-acks``, and the answer that it must get.

    ``expected`` is the status of each label; ``timeout`` in seconds, as the gateway gets it.
    """

    title: str
    asked: str
    path: str
    body: object
    timeout: int
    status: int
    expected: Mapping[str, int]
    meaning: str


ACTS: Final = (
    Act(
        title="1. Everybody confirms",
        asked="Store a lamp. Answer when it is safely on disk (twin-persisted), when the "
        "subscriber has it (demo:websocket), and when Spark has written it to Parquet "
        "(spark:ingested).",
        path="",
        body={"attributes": {"room": "kitchen", "brightness": 40}},
        timeout=30,
        status=200,
        expected=dict(zip(_ALL, (201, 200, 200), strict=True)),
        meaning="200: all three have confirmed. twin-persisted says 201, the lamp is new.",
    ),
    Act(
        title="2. Somebody does not answer",
        asked=f"Set the brightness, and ask for a fourth label, {NOBODY}, that nobody has "
        "declared. Wait 5 seconds at most.",
        path="/attributes/brightness",
        body=60,
        timeout=5,
        status=424,
        expected=dict(zip((*_ALL, NOBODY), (204, 200, 200, 408), strict=True)),
        meaning=f"424: not everybody has confirmed. {NOBODY} stands there with 408 because its "
        "time ran out; the other three did confirm, so the change is stored and ingested.",
    ),
    Act(
        title="3. Somebody refuses",
        asked="Store a measurement that cannot be: the Spark job has a rule about it.",
        path="/attributes/measured",
        body={"celsius": -400},
        timeout=30,
        status=424,
        expected=dict(zip(_ALL, (201, 200, 422), strict=True)),
        meaning="424 again, but at once: Spark has answered, with 422 and its reason. Nobody has "
        "to wait for a timeout, and 422 says that sending the same again will not help. The lamp "
        "itself has the value: acknowledgements report, they undo nothing.",
    ),
)


class Teller:
    """Sends the requests to one gateway and shows question and answer on ``screen``.

    ``before_answer`` shows what else has happened until then.
    """

    def __init__(
        self, screen: Screen, http: httpx.AsyncClient, before_answer: Callable[[], None]
    ) -> None:
        self._screen = screen
        self._http = http
        self._before_answer = before_answer

    async def tell(self, act: Act, correlation_id: str) -> None:
        """Perform one act. Raises WrongAnswer if the answer is not what it must be."""
        self._screen.heading(act.title)
        self._screen.prose(act.asked)
        query = {"requested-acks": ",".join(act.expected), "timeout": f"{act.timeout}s"}
        path, parameters = f"/api/2/things/{THING}{act.path}", urlencode(query, safe=":,")
        self._screen.step("request", f"to gateway 1: PUT {path}")
        self._screen.more(f"?{parameters}")
        self._screen.more(json.dumps(act.body))
        begun = time.monotonic()
        try:
            answer = await self._http.put(
                f"{path}?{parameters}",
                json=act.body,
                headers={"correlation-id": correlation_id},
                timeout=act.timeout + _SPARE,
            )
        except httpx.HTTPError as problem:
            raise WrongAnswer(f"{act.title}: no answer from gateway 1: {problem!r}") from problem
        took = (time.monotonic() - begun) * 1000
        self._before_answer()
        self._screen.step(
            "answer",
            f"{answer.status_code} after {took:.0f} ms",
            colour=status_colour(answer.status_code),
        )
        body = _json(answer)
        self._screen.json(body)
        _check(act, answer.status_code, body)
        self._screen.prose(act.meaning)


class WrongAnswer(DemoFailed):
    """A request was not answered as it must be; ``label`` is the first that is wrong, if one is."""

    def __init__(self, text: str, label: str | None = None) -> None:
        super().__init__(text)
        self.label = label


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text


def _check(act: Act, status: int, body: Any) -> None:
    got = {}
    if isinstance(body, dict):
        got = {
            label: entry.get("status") for label, entry in body.items() if isinstance(entry, dict)
        }
    for label, wanted in act.expected.items():
        if got.get(label) != wanted:
            found = got.get(label, "missing")
            raise WrongAnswer(f"{act.title}: {label} is {found}, it must be {wanted}", label)
    if status != act.status or list(got) != list(act.expected):
        raise WrongAnswer(
            f"{act.title}: the answer is {status} for {', '.join(got)}, "
            f"it must be {act.status} for {', '.join(act.expected)}"
        )
