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


class RedisClient:
    """One sorted set of a server; its members are the bodies, no two of which are the same."""

    def __init__(self, path: Path, pid: int) -> None:
        """Connect to a socket file; `pid`: the server."""
        self._path, self._pid = path, pid
        self._socket = connect(path)
        self._file = self._socket.makefile("rb")

    def another(self) -> RedisClient:
        """Connect once more."""
        return RedisClient(self._path, self._pid)

    def servers(self) -> Sequence[int]:
        """Return the server."""
        return (self._pid,)

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

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
        """Put timers; they are known by their bodies."""
        self.put_many(due_ms, bodies)
        return list(bodies)

    def cancel_many(self, known: Sequence[bytes]) -> None:
        """Remove members, ROWS to a command."""
        for at in range(0, len(known), ROWS):
            part = known[at : at + ROWS]
            self._send(b"ZREM", _KEY, *part)
            assert self._answer() == len(part)

    def take_due(self) -> list[bytes]:
        """Remove members that are due, in one script."""
        self._send(b"EVAL", _TAKE, b"1", _KEY, b"%d" % now_ms(), b"%d" % ROWS)
        found = self._answer()
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        """Let go of the connection."""
        self._file.close()
        self._socket.close()


class Redis(RedisClient):
    """A server of one's own."""

    def __init__(self, folder: Path, synced: bool) -> None:
        path = folder / "redis.sock"
        self._server = start(folder, path, synced)
        super().__init__(path, self._server.pid)

    def close(self) -> None:
        """Stop the server."""
        super().close()
        self._server.stop()


def start(folder: Path, path: Path, synced: bool) -> Server:
    """Start a server on a socket file."""
    command = [program("redis-server", "redis-server"), "--port", "0", "--unixsocket", str(path)]
    command += ["--dir", str(folder), "--appendonly", "yes", "--save", ""]
    command += ["--appendfsync", "always" if synced else "everysec"]

    def is_ready() -> bool:
        """Tell whether it has loaded what it had."""
        if not answers(path)():
            return False
        with connect(path) as asking:
            asking.sendall(b"PING\r\n")
            return asking.recv(100).startswith(b"+PONG")

    return Server(command, is_ready)
