"""Redis: a sorted set by due time, pipelined, with an append-only file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peers.server import Client, Server, program, says
from peers.timers import now_ms

_TAKE = b"""
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due - 1) end
return due
"""
_KEY = b"timers"


def start(folder: Path, synced: bool) -> Server:
    """Start a server on a socket file `redis.sock`; wait until it has loaded what it had."""
    path = folder / "redis.sock"
    command = [program("redis-server", "redis-server"), "--port", "0", "--unixsocket", str(path)]
    command += ["--dir", str(folder), "--appendonly", "yes", "--save", ""]
    command += ["--appendfsync", "always" if synced else "everysec"]
    return Server(command, says(path, b"PING\r\n", b"+PONG"))


class Redis(Client):
    """One sorted set of a server; its members are the bodies, no two of which are the same."""

    def __init__(self, folder: Path, synced: bool) -> None:
        super().__init__(folder / "redis.sock", start(folder, synced))

    def _ask(self, *words: bytes) -> bytes | int | list[bytes]:
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self._socket.sendall(b"".join(parts))
        return self._answer()

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

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> Sequence[bytes]:
        """Add members in one command; they are known by their bodies."""
        words = [b"ZADD", _KEY]
        for due, body in zip(due_ms, bodies, strict=True):
            words += [b"%d" % due, body]
        assert self._ask(*words) == len(bodies)
        return bodies

    def cancel_rows(self, known: Sequence[bytes]) -> None:
        assert self._ask(b"ZREM", _KEY, *known) == len(known)

    def take_due(self) -> list[bytes]:
        """Remove members that are due, in one script."""
        found = self._ask(b"EVAL", _TAKE, b"1", _KEY, b"%d" % now_ms(), b"%d" % self.rows)
        assert isinstance(found, list)
        return found
