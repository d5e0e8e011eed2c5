"""What goes over a connection: frames of JSON, with columns behind it.

The frames are those of the standard library's `multiprocessing.connection`: a length, then bytes.
Nothing that is read here is ever unpickled. A frame is a header, a line of JSON, with the first
part behind it; further parts have frames of their own. A socket is read for as much as has come,
so a short frame takes one call of the system at each end.

What is asked most has frames without JSON: a client's put, whose body is its part, and an answer
that is an id. `Wire` makes and reads them; who asks and who answers has headers as of all others.

In JSON bytes are `{"base64": "…"}`; an object that happens to have that one name, or "object", is
written as `{"object": {…}}`. So each value has one spelling, and the reader gets what was meant.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from operator import index
from typing import Any, Final

from timerstore import errors
from timerstore.errors import InvalidArgumentError, TimerStoreError

SOCKET_NAME: Final = "control.sock"
PROTOCOL: Final = 1
"""Both ends speak the same one, or do not speak."""
FRAME_BYTES_MAX: Final = 64 << 20
"""Of a question's frames together; an answer is as long as what was asked for."""
_PARTS_MAX: Final = 1 << 20
_ALIGNED: Final = 64
_READ_BYTES: Final = 1 << 12
_JOINED_BYTES_MAX: Final = 1 << 14
"""Of a frame that is sent together with its length: copying more costs more than a call."""
_LENGTH: Final = struct.Struct("!i")
_LONG: Final = struct.Struct("!iQ")
"""The length of a longer frame, behind −1."""
_LENGTH_MAX: Final = (1 << 31) - 1
_PUT: Final = struct.Struct("!c?qqqHI")
"""`P`, asked again, number, since, due time in ms or 0, bytes of the topic, of the rest as JSON."""
_ID_DIGITS: Final = 32
_ID: Final = struct.Struct(f"!cq{_ID_DIGITS}s")
"""`I`, the log's end, the id."""
_ANSWER: Final = frozenset(("result", "end"))
_PLAIN: Final = (str, int, float, bool, type(None))
_BYTES: Final = "base64"
_OBJECT: Final = "object"
_NAMES: Final = frozenset((_BYTES, _OBJECT))

_encode: Final = json.JSONEncoder().encode
_decode: Final = json.JSONDecoder().decode

Header = dict[str, Any]
Part = bytes | memoryview


class LostError(Exception):
    """The other end has gone, or sent what cannot be read."""


class Wire:
    """One connected socket; one thread at a time uses it, any may end it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self.socket = sock
        self._come = b""  # and not read yet

    def limit(self, receive_s: float, send_s: float) -> None:
        """Bound how long the other end may take for each piece of a frame; 0: for ever."""
        for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
            packed = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
            self.socket.setsockopt(socket.SOL_SOCKET, option, packed)

    def send(
        self, header: Header, parts: Sequence[Part] = (), bytes_max: int | None = None
    ) -> None:
        """Send a header with its parts; raises LostError.

        More than `bytes_max` are not begun to be sent: raises InvalidArgumentError.
        """
        data = _written(header, parts)
        length = len(data)
        if len(parts) > 1:
            length += sum(memoryview(part).nbytes for part in parts[1:])
        if bytes_max is not None and length > bytes_max:
            raise InvalidArgumentError(
                f"These arguments take {length} bytes; a call of a client takes "
                f"{bytes_max} at most. Make several calls."
            )
        try:
            self._send(data)
            for part in parts[1:]:
                self._send(part)
        except (OSError, ValueError) as e:
            raise LostError(str(e)) from e

    def _send(self, data: Part) -> None:
        length = memoryview(data).nbytes
        told = _LENGTH.pack(length) if length <= _LENGTH_MAX else _LONG.pack(-1, length)
        if length <= _JOINED_BYTES_MAX:
            self.socket.sendall(told + data)
        else:
            self.socket.sendall(told)
            self.socket.sendall(data)

    def _receive(self, bytes_max: int | None) -> bytes:
        """Return the bytes of the next frame; raises OSError, EOFError."""
        come, at = self._come, _LENGTH.size
        if len(come) < at:
            come = self._more(come, at)
        (length,) = _LENGTH.unpack_from(come)
        if length == -1:
            come, at = self._more(come, _LONG.size), _LONG.size
            (_, length) = _LONG.unpack_from(come)
        if length < 0 or (bytes_max is not None and length > bytes_max):
            raise OSError(f"a frame of {length} bytes is too long")
        if len(come) < at + length:
            come, at = self._more(come[at:], length), 0
        self._come = come[at + length :]
        return come[at : at + length]

    def _more(self, come: bytes, count: int) -> bytes:
        """Return what has come with so much of what comes that it is `count` bytes, or more.

        Memory is taken as they come: a length is only told.
        """
        pieces, left = [come], count - len(come)
        while left > 0:
            come = self.socket.recv(max(_READ_BYTES, min(left, 1 << 20)))
            if not come:
                raise EOFError("the other end has gone")
            pieces.append(come)
            left -= len(come)
        return b"".join(pieces)

    def receive(self, bytes_max: int | None = None) -> tuple[Header, list[Part]]:
        """Return the next header with its parts, of `bytes_max` together; raises LostError."""
        left = bytes_max
        try:
            data = self._receive(left)
            if data[:1] in (b"P", b"I"):
                return _read_put(data) if data[:1] == b"P" else _read_id(data)
            end = data.find(b"\n")
            header = _decode((data if end < 0 else data[:end]).decode())
            if not isinstance(header, dict):
                raise LostError("it did not send a JSON object")
            count, parts = header.get("parts", 0), list[Part]()
            if type(count) is not int or not (end >= 0) <= count <= _PARTS_MAX:
                raise LostError("it did not say how many parts follow")
            if end >= 0:
                parts.append(memoryview(data)[end + 1 :])
            for _ in range(count - len(parts)):
                left = None if left is None else max(left - len(data), 0)
                data = self._receive(left)
                parts.append(data)
        except (OSError, EOFError, ValueError, RecursionError, struct.error) as e:
            raise LostError(str(e)) from e
        return header, parts

    def first(self) -> bytes:
        """Return the first byte that comes, which is read again; none at the end."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK)
        except OSError as e:
            raise LostError(str(e)) from e

    def has_more(self, timeout_s: float) -> bool:
        """Tell whether something comes, its end included, within a time."""
        try:
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            return bool(self._come or poll.poll(timeout_s * 1000))
        except (OSError, ValueError):
            return True

    def end(self, how: int = socket.SHUT_RDWR) -> None:
        """Let threads that wait at either end see that it is over."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(how)

    def close(self) -> None:
        """Close it; the other end sees that, unless a forked process has it too."""
        self.socket.close()


# --- frames


def _written(header: Header, parts: Sequence[Part]) -> bytes:
    if parts and header.get("call") == "put":
        rest = dict(header["with"])
        topic, at_ms = rest.pop("topic").encode(), rest.pop("at_ms", 0)
        said = _encode(rest).encode() if rest else b""
        again, number, since = "again" in header, header["number"], header["since"]
        head = _PUT.pack(b"P", again, number, since, at_ms, len(topic), len(said))
        return b"".join((head, topic, said, parts[0]))
    result = header.get("result")
    if not parts and header.keys() == _ANSWER and type(result) is str:
        if len(result) == _ID_DIGITS and result.isascii():
            return _ID.pack(b"I", header["end"], result.encode())
    if parts:
        header["parts"] = len(parts)
    data = _encode(header).encode()
    if parts:  # the first stands behind the header, aligned as columns are
        data = b"".join((data, b" " * (-(len(data) + 1) % _ALIGNED), b"\n", parts[0]))
    return data


def _read_put(data: bytes) -> tuple[Header, list[Part]]:
    """Return the header of a put, and its body; raises ValueError, `struct.error`."""
    _, again, number, since, at_ms, topic_bytes, said_bytes = _PUT.unpack_from(data)
    said_at = _PUT.size + topic_bytes
    body_at = said_at + said_bytes
    given = _decode(data[said_at:body_at].decode()) if said_bytes else {}
    if not isinstance(given, dict) or body_at > len(data):
        raise ValueError("it did not send a whole put")
    given["topic"] = data[_PUT.size : said_at].decode()
    if at_ms:
        given["at_ms"] = at_ms
    header = {"call": "put", "with": given, "number": number, "since": since, "again": again}
    return header, [data[body_at:]]


def _read_id(data: bytes) -> tuple[Header, list[Part]]:
    _, end, id = _ID.unpack(data)
    return {"result": id.decode(), "end": end}, []


# --- values


def to_json(value: Any) -> Any:
    """Return what JSON can say: bytes in base64, a dataclass as an object, an array as a list."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bytes):
        return {_BYTES: binascii.b2a_base64(value, newline=False).decode()}
    if isinstance(value, dict):
        said = {str(name): to_json(each) for name, each in value.items()}
        return {_OBJECT: said} if len(said) == 1 and not _NAMES.isdisjoint(said) else said
    if hasattr(value, "tolist"):  # an array of NumPy's, or a number
        return value.tolist()
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return index(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    return value


def from_json(value: Any) -> Any:
    """Return the value, with its bytes; raises InvalidArgumentError if these are none."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, dict):
        if value.keys() == {_BYTES}:
            return _from_base64(value[_BYTES])
        if value.keys() == {_OBJECT} and isinstance(value[_OBJECT], dict):
            value = value[_OBJECT]
        return {name: from_json(each) for name, each in value.items()}
    return [from_json(each) for each in value] if isinstance(value, list) else value


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (AttributeError, ValueError) as e:
        raise InvalidArgumentError(
            f"{text!r:.80} is no base64 ({e}). Send bytes as {{{_BYTES!r}: ...}}, an object of "
            f"that name as {{{_OBJECT!r}: ...}}."
        ) from e


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return an error's kind and text."""
    return {"error": type(error).__name__, "message": str(error)}


def wrong_arguments(call: object, error: TypeError) -> InvalidArgumentError:
    """Return what is told of arguments that do not fit a call."""
    return InvalidArgumentError(
        f"The arguments of {call} do not fit: {error}. Look at the arguments of the store's method "
        "of the same name."
    )


def error_from_json(answer: dict[str, Any]) -> TimerStoreError:
    """Return the same error here; one that is none of ours as a TimerStoreError."""
    kind, text = getattr(errors, str(answer.get("error")), None), str(answer.get("message"))
    if kind is errors.CorruptStoreError or not isinstance(kind, type):
        kind = TimerStoreError
    if not issubclass(kind, TimerStoreError):
        kind = TimerStoreError
    error: TimerStoreError = kind(text)
    return error
