"""Redis: a sorted set by due time, pipelined, with an append-only file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peers.embedded import now_ms
from peers.server import Server, answers, connect, program
from peers.timers import ROWS

_TAKE = b"""
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due - 1) end
return due
"""
_KEY = b"timers"


class Redis:
    """A server with one sorted set; its members are the bodies, no two of which are the same."""

    def __init__(self, folder: Path, synced: bool) -> None:
        """Start it."""
        path = folder / "redis.sock"
        command = [
            program("redis-server", "redis-server"),
            "--port",
            "0",
            "--unixsocket",
            str(path),
        ]
        command += ["--dir", str(folder), "--appendonly", "yes", "--save", ""]
        command += ["--appendfsync", "always" if synced else "everysec"]
        self._server = Server(command, answers(path))
        self._socket = connect(path)
        self._file = self._socket.makefile("rb")

    def _send(self, *words: bytes) -> None:
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self._socket.sendall(b"".join(parts))

    def _answer(self) -> bytes | int | list[bytes]:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [bytes(self._answer()) for _ in range(int(rest))]  # type: ignore[arg-type]
        if kind == b"$":
            return self._file.read(int(rest) + 2)[:-2]
        if kind == b":":
            return int(rest)
        raise RuntimeError(f"Redis says {line!r}")

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Add a member."""
        self._send(b"ZADD", _KEY, b"%d" % due_ms, body)
        assert self._answer() == 1

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Add members, ROWS to a command."""
        for at in range(0, len(bodies), ROWS):
            words = [b"ZADD", _KEY]
            for due, body in zip(due_ms[at : at + ROWS], bodies[at : at + ROWS], strict=True):
                words += [b"%d" % due, body]
            self._send(*words)
            assert self._answer() == len(bodies[at : at + ROWS])

    def take_due(self) -> list[bytes]:
        """Remove members that are due, in one script."""
        self._send(b"EVAL", _TAKE, b"1", _KEY, b"%d" % now_ms(), b"%d" % ROWS)
        found = self._answer()
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        """Stop the server."""
        self._file.close()
        self._socket.close()
        self._server.stop()
