"""beanstalkd: delayed jobs with a binlog; it knows whole seconds, so a timer is rounded up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from peers.server import Server, answers, connect, program
from peers.timers import ROWS

_AT_ONCE = 100
_SENT_BYTES = 150_000
"""So much is sent before answers are read: it fits into a socket's buffer. While answers wait, the
server reads nothing, so two who both wait to write would wait for ever."""
_COMMAND_BYTES = 32


class BeanstalkdClient:
    """One tube of a server."""

    def __init__(self, path: Path, pid: int) -> None:
        """Connect to a socket file; `pid`: the server."""
        self._path, self._pid = path, pid
        self._socket = connect(path)
        self._file = self._socket.makefile("rb")

    def another(self) -> BeanstalkdClient:
        """Connect once more."""
        return BeanstalkdClient(self._path, self._pid)

    def servers(self) -> Sequence[int]:
        """Return the server."""
        return (self._pid,)

    def put_one(self, due_ms: int, body: bytes) -> None:
        """Put a job."""
        self.put_many([due_ms], [body])

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Put jobs."""
        self.put_known(due_ms, bodies)

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
        """Put jobs, up to ROWS before an answer is read; return their ids."""
        ids = list[bytes]()
        each_bytes = max(map(len, bodies)) + _COMMAND_BYTES
        rows = max(1, min(ROWS, _SENT_BYTES // each_bytes))
        for at in range(0, len(bodies), rows):
            part, now_s, words = bodies[at : at + rows], time.time(), list[bytes]()
            for due, body in zip(due_ms[at : at + rows], part, strict=True):
                delay_s = max(0, -int(-(due / 1_000 - now_s) // 1))
                words.append(b"put 0 %d 60 %d\r\n%b\r\n" % (delay_s, len(body), body))
            self._socket.sendall(b"".join(words))
            for _ in part:
                line = self._file.readline()
                assert line.startswith(b"INSERTED"), line
                ids.append(line.split()[1])
        return ids

    def cancel_many(self, known: Sequence[bytes]) -> None:
        """Delete jobs, ROWS before an answer is read."""
        for at in range(0, len(known), ROWS):
            self._delete(known[at : at + ROWS])

    def _delete(self, ids: Sequence[bytes]) -> None:
        self._socket.sendall(b"".join(b"delete %b\r\n" % id for id in ids))
        for _ in ids:
            assert self._file.readline() == b"DELETED\r\n"

    def take_due(self) -> list[bytes]:
        """Reserve jobs, then delete them."""
        self._socket.sendall(b"reserve-with-timeout 0\r\n" * _AT_ONCE)
        bodies, ids = list[bytes](), list[bytes]()
        for _ in range(_AT_ONCE):
            line = self._file.readline().split()
            if line[0] == b"RESERVED":
                ids.append(line[1])
                bodies.append(self._file.read(int(line[2]) + 2)[:-2])
        self._delete(ids)
        return bodies

    def close(self) -> None:
        """Let go of the connection."""
        self._file.close()
        self._socket.close()


class Beanstalkd(BeanstalkdClient):
    """A server of one's own."""

    def __init__(self, folder: Path, synced: bool) -> None:
        path = folder / "beanstalkd.sock"
        path.unlink(missing_ok=True)
        command = [program("beanstalkd", "beanstalkd"), "-l", f"unix:{path}", "-b", str(folder)]
        command += ["-f", "0" if synced else "1000"]
        self._server = Server(command, answers(path))
        super().__init__(path, self._server.pid)

    def close(self) -> None:
        """Stop the server."""
        super().close()
        self._server.stop()
