"""The shell's end: finds a store's owner, asks, raises the errors that it raised."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from timerstore.errors import StoreAccessError, StoreClosedError, TimerStoreError
from timerstore.jit import host
from timerstore.jit.guards import Lock
from timerstore.share.wire import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    SOCKET_NAME,
    Header,
    LostError,
    Part,
    Wire,
    error_from_json,
    from_json,
    to_json,
)
from timerstore.timelog.files.folders import HeldFolder
from timerstore.timelog.files.lockfile import holder
from timerstore.timelog.files.oserrors import store_error

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
