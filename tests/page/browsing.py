"""A browser of a few lines: it keeps cookies, and sends forms as browsers do."""

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import urlencode, urlsplit

import timerstore
from tests.rigs.waiting import wait_until
from timerstore import TimerStore

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ csrf }}"


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str

    def links(self, address: str) -> list[str]:
        """Where it leads to, if that begins so."""
        found = map(unescape, re.findall(r'href="([^"]*)"', self.text))
        return [each for each in found if each.startswith(address)]

    @property
    def csrf(self) -> str:
        return re.findall(r'name="csrf" value="([^"]*)"', self.text)[0]


@dataclass
class Browser:
    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self, method: str, address: str, body: str | None = None, **headers: str | None
    ) -> Answer:
        place = urlsplit(self.url)
        given = {"Host": place.netloc, **self.headers, **headers}
        wire = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        wire.putrequest(method, address, skip_host=True)
        for name, value in given.items():
            if value is not None:
                wire.putheader(name, value)
        if body is not None:
            wire.putheader("Content-Length", str(len(body)))
        wire.endheaders(body.encode() if body is not None else None)
        answer = wire.getresponse()
        text = answer.read().decode()
        wire.close()
        if cookie := answer.headers.get("set-cookie"):
            self.headers["Cookie"] = cookie.partition(";")[0]
        return Answer(answer.status, answer.headers, text)

    def get(self, address: str, **headers: str | None) -> Answer:
        return self.ask("GET", address, **headers)

    def send(self, address: str, fields: Mapping[str, Any], **headers: str | None) -> Answer:
        """Send a form, with the Origin that a browser tells."""
        origin = self.url.rstrip("/")
        body = urlencode(fields, doseq=True)
        return self.ask("POST", address, body, **{"Origin": origin, **headers})


def kill_some(store: TimerStore, count: int, topic: str = "orders") -> None:
    """Make dead letters of the group `billing`."""
    for i in range(count):
        store.put(EVIL.encode(), topic=topic, key=f"o{i}", properties={"a": EVIL})

    def fail(delivery: timerstore.Delivery) -> None:
        raise ValueError(EVIL)

    consumer = timerstore.Consumer(store, "billing", max_attempts=0)
    consumer.subscribe(topic, fail)
    with consumer:
        wait_until(lambda: len(store.dead_letters("billing", None)) >= count)
