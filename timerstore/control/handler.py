"""HTTP, as far as the door speaks it: GET /health, POST /cancel with a JSON object, …"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, Final

from timerstore.control.wire import CONTENT_BYTES_MAX

Answer = Callable[[str, bytes], tuple[int, dict[str, Any]]]

READS: Final = ("health", "stats", "count")
"""What GET may ask: it changes nothing."""
_LENGTH: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "timerstore", ""
    answer: ClassVar[Answer]

    def do_GET(self) -> None:
        name = self.path.strip("/")
        if name not in READS:
            self._send(405, {"error": "InvalidArgumentError", "message": f"POST {self.path}."})
        else:
            self._send(*type(self).answer(name, b""))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not _LENGTH.fullmatch(length) or int(length) > CONTENT_BYTES_MAX:
            self.close_connection = True
            text = f"Send a Content-Length, of {CONTENT_BYTES_MAX} bytes at most."
            self._send(413, {"error": "InvalidArgumentError", "message": text})
            return
        self._send(*type(self).answer(self.path.strip("/"), self.rfile.read(int(length))))

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: whoever asks is answered."""


def handle(guest: socket.socket, answer: Answer) -> None:
    """Answer all that is asked on a connection, until it ends."""
    kind = type("_Handler", (_Handler,), {"answer": staticmethod(answer)})
    kind(guest, ("", 0), None)  # its making is its whole life
