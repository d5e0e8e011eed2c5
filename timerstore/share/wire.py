"""What goes over a connection: frames of JSON, with columns behind it.

The frames are those of the standard library's `multiprocessing.connection`: a length, then bytes.
Nothing that is read here is ever unpickled. A frame is a header, a line of JSON, with the first
part behind it; further parts have frames of their own. A socket is read for as much as has come,
so a short frame takes one call of the system at each end.

What is asked most has frames without JSON: a client's put, whose body is its part, and an answer
that is an id. `Wire` makes and reads them; who asks and who answers has headers as of all others.

In JSON bytes are `{"base64": "…"}`; an object that happens to have that one name, or "object", is
written as `{"object": {…}}`. So each value has one spelling, and the reader gets what was meant.

Below stand the socket in the store's folder, and the shell's end: it finds a store's owner, asks,
raises the errors that it raised. No kernel is loaded.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import json
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, is_dataclass
from operator import index
from pathlib import Path
from typing import Any, Final

from timerstore import errors
from timerstore.errors import (
    InvalidArgumentError,
    StoreAccessError,
    StoreClosedError,
    TimerStoreError,
)
from timerstore.jit import host
from timerstore.jit.guards import Lock
from timerstore.timelog.files.folders import HeldFolder
from timerstore.timelog.files.lockfile import holder
from timerstore.timelog.files.oserrors import store_error

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
    if isinstance(value, Iterable) and not isinstance(value, str):
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


# --- the socket in the store's folder


LOOK_S: Final = 1.0
"""So often a listener looks whether its file is there."""
_QUEUE_S: Final = 10.0
_QUEUE_COUNT: Final = 128
"""So many may have connected, and wait to be accepted."""


class Listener:
    """Listens in a store's folder, whose lock is held; a file that was removed is made again.

    One thread accepts; any may close, more than once.
    """

    def __init__(self, held: HeldFolder, name: str) -> None:
        """Listen in the store's folder; raises OSError if the file system knows no sockets."""
        self._name, self._lock, self._closed = name, Lock(), False
        self._held, self._folder = held, held.fd  # which is open as long as we hold it
        self._socket, self._file = self._listen()

    def _listen(self) -> tuple[socket.socket, tuple[int, ...]]:
        """Put a file in place of what is there, which a killed life may have left.

        It gets its name once it listens, so that nobody who finds it is refused.
        """
        unnamed = self._name + ".new"
        with suppress(FileNotFoundError):
            os.unlink(unnamed, dir_fd=self._folder)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A path has 108 bytes at most.
            folder = folder_name(self._folder, self._held.path)
            host.bind_privately(listening, f"{folder}/{unnamed}")
            listening.listen(_QUEUE_COUNT)
            listening.settimeout(LOOK_S)
            made = self._find(unnamed)
            if made is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), unnamed)
            os.replace(unnamed, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            listening.close()
            with suppress(OSError):
                os.unlink(unnamed, dir_fd=self._folder)
            raise
        return listening, made

    def _find(self, name: str) -> tuple[int, ...] | None:
        """Return which file stands there; a number may be another file's by now."""
        try:
            status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return None
        return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode), status.st_mtime_ns

    def accept(self) -> socket.socket | None:
        """Return who comes; None if nobody did for a moment. Raises OSError once closed."""
        try:
            return self._socket.accept()[0]
        except TimeoutError:
            self._look()
            return None

    def _look(self) -> None:
        """Make the file again if it is not ours any more; if that fails, look again later."""
        with self._lock.guard(), suppress(OSError):
            if not self._closed and self._find(self._name) != self._file:
                before = self._socket
                self._socket, self._file = self._listen()
                before.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, −1 once it is closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let nobody in any more, also under an `accept` that waits, and remove the file."""
        with self._lock.guard():
            self._closed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            if self._find(self._name) == self._file:
                with suppress(OSError):
                    os.unlink(self._name, dir_fd=self._folder)

    def forget(self) -> None:
        """Close what a forked child inherited; the file is the parent's."""
        self._lock, self._closed = Lock(), True
        self._socket.close()


def folder_name(fd: int, path: Path) -> str:
    """Return a short name of an open folder; raises StoreAccessError where there is no /proc."""
    name = host.name_of(fd, path)
    if not os.path.exists(name):
        raise StoreAccessError(
            "/proc is not mounted here, and timerstore finds a store's socket through it. Mount "
            "/proc, or use the store in one process, without share=True."
        )
    return name


def is_allowed(guest: socket.socket) -> bool:
    """Tell whether it is our own user, or the superuser."""
    return host.uid_of(guest) in (0, os.geteuid())


def connect(path: Path, name: str, timeout_s: float | None) -> socket.socket:
    """Return a socket connected to the one of a folder; raises OSError if nobody listens."""
    folder = os.open(path, host.FOLDER_ONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            _connect(sock, f"{folder_name(folder, path)}/{name}")
        except BaseException:
            sock.close()
            raise
    finally:
        os.close(folder)
    return sock


def _connect(sock: socket.socket, file: str) -> None:
    """Connect; if many do at once, the kernel's queue may be full for a moment."""
    until_s = time.monotonic() + _QUEUE_S
    while True:
        try:
            return sock.connect(file)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
        time.sleep(0.01)


# --- the shell's end: finds the owner, asks, raises its errors


TIMEOUT_S: Final = 60.0
"""How long an answer may take: a fsync on a disk that is busy takes its time."""
NOBODY: Final = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.ENOTSOCK, errno.ENXIO)
"""What connecting fails with if no process listens."""
_TOO_MANY: Final = (errno.EMFILE, errno.ENFILE)


class Owner:
    """The process that has a store open; any number of threads may ask it.

    Each call, and each listing, is a connection of its own, so that a person who thinks between two
    of them keeps nobody out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.timeout_s = TIMEOUT_S

    def call(self, name: str, **arguments: Any) -> Any:
        """Make a call in the owner's process; return its result as JSON says it.

        Raises what the call raised there; StoreClosedError if the owner ended before it answered;
        it may have made the call.
        """
        return from_json(self.ask(name, **arguments)[0]["result"])

    def ask(self, name: str, **arguments: Any) -> tuple[Header, list[Part]]:
        """Make a call as `call` does; return what is answered, with its columns."""
        with self._lost_is_told(), closing(self._send(name, arguments)) as wire:
            return _answer(wire)

    def pending(self, **given: Any) -> Iterator[dict[str, Any]]:
        """Yield pending timers as JSON says them, some from each answer; see `AnyStore.pending`.

        All are asked for on one connection, whose end ends the listing. It raises what `call` does.
        """
        with self._lost_is_told():
            wire = self._send("pending", given)
        with closing(wire):
            while True:
                with self._lost_is_told():
                    told = from_json(_answer(wire)[0]["result"])
                yield from told["timers"]
                if told["listing"] is None:
                    return
                with self._lost_is_told():
                    wire.send(_question("pending", {"listing": told["listing"]}))

    @contextmanager
    def _lost_is_told(self) -> Iterator[None]:
        """Say of an owner that is lost in the block what became of it."""
        try:
            yield
        except TimerStoreError:  # some are OSErrors
            raise
        except (OSError, LostError) as e:
            if isinstance(e.__cause__, BlockingIOError):
                raise StoreAccessError(
                    f"{self.path} is open in another process{holder(self.path)}, which did not "
                    f"answer within {self.timeout_s:g} s. Check whether that process is stopped, "
                    "or waits for a disk."
                ) from e
            raise StoreClosedError(
                f"The process that had {self.path} open ended before it answered. It may have "
                "made the call: check that, then try again."
            ) from e

    def _send(self, name: str, arguments: dict[str, Any]) -> Wire:
        """Return a connection on which the whole question was sent."""
        question = _question(name, arguments)
        until_s = time.monotonic() + self.timeout_s
        while True:
            wire = Wire(connect(self.path, SOCKET_NAME, self.timeout_s))
            try:
                wire.limit(self.timeout_s, self.timeout_s)
                wire.send(question, bytes_max=FRAME_BYTES_MAX)
                return wire
            except BaseException as e:
                wire.close()
                # The connection was closed before it had asked, because very many came at once.
                is_lost = isinstance(e, LostError) and not isinstance(e.__cause__, BlockingIOError)
                if not is_lost or time.monotonic() > until_s:
                    raise


def _question(name: str, arguments: dict[str, Any]) -> Header:
    return {"protocol": PROTOCOL, "call": name, "with": to_json(arguments)}


def _answer(wire: Wire) -> tuple[Header, list[Part]]:
    """Return what is answered next; raises what the call raised."""
    header, parts = wire.receive()
    if "error" in header:
        raise error_from_json(header)
    return header, parts


def find_owner(path: str | os.PathLike[str]) -> Owner | None:
    """Return the process that has a store open; None if there is none that can be asked.

    Raises StoreAccessError if it belongs to another user.
    """
    try:
        connect(Path(path), SOCKET_NAME, TIMEOUT_S).close()
    except OSError as e:
        if e.errno in NOBODY:
            return None
        raise not_asked(Path(path), e) from e
    return Owner(Path(path))


def not_asked(path: Path, error: OSError) -> TimerStoreError:
    """Return why the socket of a store's folder cannot be connected to: who may have it open."""
    if isinstance(error, TimerStoreError):  # it says what to do
        return error
    if error.errno in _TOO_MANY:
        return StoreAccessError(
            f"{path} cannot be connected to ({error.strerror}). Open fewer files."
        )
    try:
        (path / SOCKET_NAME).lstat()
    except OSError as e:  # the folder cannot be looked into: nothing is known of a process
        return store_error(e, path)
    return StoreAccessError(
        f"{path} belongs to another user, whose process may have it open: it cannot be asked "
        f"({error.strerror}). Run this as that user."
    )
