"""A request of HTTP at the door: `curl` reads health, statistics or the count.

The door imports it once somebody asks so, because the standard library's server of HTTP takes as
long to import as a third of a first timer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

READS: Final = ("health", "stats", "count")
"""Calls without arguments that change nothing."""
_WAIT_S: Final = 5.0
"""So long the other end may take for each piece."""


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "timerstore", ""
    timeout = _WAIT_S

    def __init__(self, guest: socket.socket, answer: Callable[[str], dict[str, Any]]) -> None:
        self._answer = answer
        super().__init__(guest, ("", 0), None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        name = self.path.strip("/")
        if name in READS:
            answer = self._answer(name)
            self._send(200 if "result" in answer else 409, answer)
        else:
            text = (
                f"There is no page {self.path!r}. GET one of {', '.join(READS)}; for all else "
                "use the command `timerstore`."
            )
            self._send(404, {"error": "InvalidArgumentError", "message": text})

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the answer goes to the client."""


def answer_get(guest: socket.socket, answer: Callable[[str], dict[str, Any]]) -> None:
    """Answer one request; raises OSError if the other end has gone."""
    _Handler(guest, answer)  # its making is its whole life
