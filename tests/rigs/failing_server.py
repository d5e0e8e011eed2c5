"""A server of S3 that fails as it is told to; else it passes on to another one."""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

FAILURES: Final = {
    "internal error": (500, "InternalError"),
    "unavailable": (503, "ServiceUnavailable"),
    "throttled": (503, "SlowDown"),
    "expired": (400, "ExpiredToken"),
    "denied": (403, "AccessDenied"),
    "full": (507, "InsufficientCapacity"),
}
"""What is answered instead."""
OTHERS: Final = ("cut", "wrong bytes", "nonsense", "half", "hang")


class FailingServer:
    """What it does just now; None: it passes everything on."""

    def __init__(self, behind: str) -> None:
        self.how: str | None = None
        self.seen: list[str] = []
        self.hang_s = 60.0
        self._behind = urlsplit(behind)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self) -> None:
                outer.answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body, how = _body_of(request), self.how
        self.seen.append(f"{request.command} {request.path}")
        if how == "hang":
            until_s = time.monotonic() + self.hang_s
            while self.how == "hang" and time.monotonic() < until_s:
                time.sleep(0.05)
        if how in ("cut", "hang"):
            request.close_connection = True
            return
        if how in FAILURES:
            status, code = FAILURES[how]
            text = f"<Error><Code>{code}</Code><Message>as it was told</Message></Error>"
            self._send(request, status, {"Content-Type": "application/xml"}, text.encode())
            return
        status, headers, data = self._pass_on(request, body)
        if how == "wrong bytes" and data:
            data = (
                data[: len(data) // 2]
                + bytes([data[len(data) // 2] ^ 0x55])
                + data[len(data) // 2 + 1 :]
            )
        elif how == "nonsense" and data:
            data = b"<html>please pay for this network</html>".ljust(len(data))[: len(data)]
        if how == "half" and data:
            request.close_connection = True
        self._send(request, status, headers, data, half=how == "half")

    def _pass_on(
        self, request: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self._behind.netloc, timeout=30)
        try:
            headers = {
                name: value
                for name, value in request.headers.items()
                if name.lower() not in ("transfer-encoding", "expect", "content-length")
            }
            connection.request(request.command, request.path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    @staticmethod
    def _send(
        request: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        data: bytes,
        *,
        half: bool = False,
    ) -> None:
        request.send_response_only(status)
        is_head = request.command == "HEAD"
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                request.send_header(name, value)
        told = headers.get("Content-Length", str(len(data))) if is_head else str(len(data))
        request.send_header("Content-Length", told)
        request.end_headers()
        if not is_head:
            request.wfile.write(data[: len(data) // 2] if half else data)


def _body_of(request: BaseHTTPRequestHandler) -> bytes:
    """Return what comes with a request, in one piece or in several."""
    if "chunked" not in request.headers.get("Transfer-Encoding", ""):
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    parts = list[bytes]()
    while length := int(request.rfile.readline().split(b";")[0], 16):
        parts.append(request.rfile.read(length))
        request.rfile.readline()
    while request.rfile.readline().strip():
        pass
    return b"".join(parts)


@contextmanager
def failing_server(behind: str) -> Iterator[FailingServer]:
    """Run it before the server at an address."""
    server = FailingServer(behind)
    thread = threading.Thread(target=server.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.how = None
        server.server.shutdown()
        server.server.server_close()
        thread.join()
