"""The shell's end: finds a store's owner, asks, raises the errors that it raised."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from timerstore.errors import StoreAccessError, StoreClosedError, TimerStoreError
from timerstore.share.socketfile import connect
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
from timerstore.timelog.files.lockfile import holder
from timerstore.timelog.files.oserrors import store_error

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
        """Made by `find_owner`."""
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
