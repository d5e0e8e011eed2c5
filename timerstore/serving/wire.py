"""What goes over a connection: JSON, followed by columns as Arrow writes them.

The frames are those of the standard library's `multiprocessing.connection`, sent as bytes alone:
nothing that is read here is ever unpickled. A frame is a header, a line of JSON, with the first
part behind it; further parts have frames of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

import pyarrow as pa

from timerstore.errors import InvalidArgumentError

PROTOCOL: Final = 1
"""Both ends speak the same one, or do not speak."""
SOCKET_NAME: Final = "serve.sock"
FRAME_BYTES_MAX: Final = 64 << 20
"""Of a question's frames together; an answer is as long as what was asked for."""
COLUMN_BYTES: Final = 16 << 20
"""Of columns in one frame, where they can be divided."""
_PARTS_MAX: Final = 1 << 20
_ALIGNED: Final = 64

Header = dict[str, Any]
Part = bytes | memoryview


class LostError(Exception):
    """The other end has gone, or sent what cannot be read."""


class Wire:
    """One connected socket; one thread at a time uses it, any may end it."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a socket over."""
        sock.settimeout(None)
        self._socket = sock
        self._connection = Connection(os.dup(sock.fileno()))

    def limit(self, receive_s: float, send_s: float) -> None:
        """Bound how long the other end may take for each piece of a frame; 0: for ever."""
        for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
            packed = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, option, packed)

    def send(
        self, header: Header, parts: Sequence[Part] = (), bytes_max: int | None = None
    ) -> None:
        """Send a header with its parts; raises LostError.

        More than `bytes_max` are not begun to be sent: raises InvalidArgumentError.
        """
        if parts:
            header["parts"] = len(parts)
        data = json.dumps(header).encode()
        if parts:  # the first stands behind the header, aligned as columns are
            data = b"".join((data, b" " * (-(len(data) + 1) % _ALIGNED), b"\n", parts[0]))
        length = len(data) + sum(memoryview(part).nbytes for part in parts[1:])
        if bytes_max is not None and length > bytes_max:
            raise InvalidArgumentError(
                f"These arguments take {length} bytes; a call of a client takes "
                f"{bytes_max} at most. Make several calls."
            )
        try:
            self._connection.send_bytes(data)
            for part in parts[1:]:
                self._connection.send_bytes(part)
        except (OSError, ValueError) as e:
            raise LostError(str(e)) from e

    def receive(self, bytes_max: int | None = None) -> tuple[Header, list[Part]]:
        """Return the next header with its parts, of `bytes_max` together; raises LostError."""
        left = bytes_max
        try:
            data = self._connection.recv_bytes(left)
            end = data.find(b"\n")
            header = json.loads(data if end < 0 else data[:end])
            if not isinstance(header, dict):
                raise LostError("it sent no object")
            count, parts = header.get("parts", 0), list[Part]()
            if type(count) is not int or not (end >= 0) <= count <= _PARTS_MAX:
                raise LostError("it sent no count of parts")
            if end >= 0:
                parts.append(memoryview(data)[end + 1 :])
            for _ in range(count - len(parts)):
                left = None if left is None else max(left - len(data), 0)
                data = self._connection.recv_bytes(left)
                parts.append(data)
        except (OSError, EOFError, ValueError, RecursionError) as e:
            raise LostError(str(e)) from e
        return header, parts

    def has_more(self, timeout_s: float) -> bool:
        """Tell whether something comes, its end included, within a time."""
        try:
            return self._connection.poll(timeout_s)
        except (OSError, ValueError):
            return True

    def end(self, how: int = socket.SHUT_RDWR) -> None:
        """Have whoever waits at either end see that it is over."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(how)

    def close(self) -> None:
        """Close it; the other end sees that, unless a forked process has it too."""
        self._socket.close()
        with contextlib.suppress(OSError):
            self._connection.close()


# --- columns


def write_table(table: pa.Table) -> list[Part]:
    """Return a table as frames, each a stream of its own, none too long."""
    return [_write(batch) for batch in _divided(table)]


def _divided(table: pa.Table) -> Iterable[pa.RecordBatch]:
    for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]:
        yield from _halved(batch)


def _halved(batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    if batch.num_rows < 2 or batch.nbytes <= COLUMN_BYTES:
        yield batch
    else:
        middle = batch.num_rows // 2
        yield from _halved(batch.slice(0, middle))
        yield from _halved(batch.slice(middle))


def _write(batch: pa.RecordBatch) -> Part:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())


def read_table(parts: Sequence[Part]) -> pa.Table:
    """Return the table of some frames, every offset in it checked. O(bytes).

    Raises InvalidArgumentError for anything else.
    """
    try:
        table = pa.concat_tables([pa.ipc.open_stream(part).read_all() for part in parts])
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError) as e:
        raise InvalidArgumentError(f"This is no table: {e}. Send an Arrow stream.") from e
    return table
