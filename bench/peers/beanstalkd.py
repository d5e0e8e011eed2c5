"""beanstalkd: delayed jobs with a binlog; it knows whole seconds, so a timer is rounded up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from peers.server import Client, Server, program, says

_AT_ONCE = 100
_SENT_BYTES = 150_000
"""So much is sent before answers are read: it fits into a socket's buffer. While answers wait, the
server reads nothing, so two who both wait to write would wait for ever."""
_COMMAND_BYTES = 32


class Beanstalkd(Client):
    """One tube of a server."""

    def __init__(self, folder: Path, synced: bool) -> None:
        path = folder / "beanstalkd.sock"
        path.unlink(missing_ok=True)
        command = [program("beanstalkd", "beanstalkd"), "-l", f"unix:{path}", "-b", str(folder)]
        command += ["-f", "0" if synced else "1000"]
        super().__init__(path, Server(command, says(path)))

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
        """Put jobs, as many before an answer is read as fit; return their ids."""
        ids = list[bytes]()
        at_once = max(1, _SENT_BYTES // (max(map(len, bodies)) + _COMMAND_BYTES))
        for at in range(0, len(bodies), at_once):
            part, now_s, words = bodies[at : at + at_once], time.time(), list[bytes]()
            for due, body in zip(due_ms[at : at + at_once], part, strict=True):
                delay_s = max(0, -int(-(due / 1_000 - now_s) // 1))
                words.append(b"put 0 %d 60 %d\r\n%b\r\n" % (delay_s, len(body), body))
            self._socket.sendall(b"".join(words))
            for _ in part:
                line = self._file.readline()
                assert line.startswith(b"INSERTED"), line
                ids.append(line.split()[1])
        return ids

    def cancel_rows(self, known: Sequence[bytes]) -> None:
        self._socket.sendall(b"".join(b"delete %b\r\n" % id for id in known))
        for _ in known:
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
        self.cancel_rows(ids)
        return bodies
