"""A client's connections to the owner of the store: found, lost, found again.

Each call that is under way has a connection of its own, a *slot*, which is used again by the next.
One more, the heart, asks nothing: it tells the owner that the client is alive, and the client that
the owner is. If an owner is lost, its calls wait for the next one for a while, and are made
again there if they may have been made, or not, with the same result.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timerstore.core.interpreter import check_interpreter
from timerstore.errors import (
    ForkedProcessError,
    InvalidArgumentError,
    StoreClosedError,
    StoreLockedError,
    TimerStoreError,
)
from timerstore.jit.guards import Lock
from timerstore.services.world.background import BackgroundThread, Flag
from timerstore.share.framecolumns import read_ids
from timerstore.share.wire import (
    FRAME_BYTES_MAX,
    NOBODY,
    PROTOCOL,
    SOCKET_NAME,
    Header,
    LostError,
    Part,
    Wire,
    connect,
    error_from_json,
    not_asked,
    to_json,
    wrong_arguments,
)
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.lockfile import holder
from timerstore.values.blocked_loop import note_blocking
from timerstore.values.kinds import check_timeout

if TYPE_CHECKING:
    from timerstore.watching.any_store import AnyStore

# --- which one is becoming it
#
# One of those that share it tries at a time, and all others know that it does: opening takes long
# if kernels have to be compiled or indexes made anew, and those that wait for an owner wait on. The
# folder is what is locked, so that no file is left if the store cannot be made.


@contextmanager
def taking_over(path: Path, create: bool) -> Iterator[bool]:
    """Hold the lock while the block opens the store; False: another process does."""
    if create:
        with suppress(TimerStoreError, OSError):  # the block will say it
            Disk().make_folder(path)
    folder = _lock(path, fcntl.LOCK_EX)
    try:
        yield folder != _TAKEN
    finally:
        if folder >= 0:
            os.close(folder)


def is_taken_over(path: Path) -> bool:
    """Tell whether a process is opening the store for others."""
    folder = _lock(path, fcntl.LOCK_SH)
    if folder >= 0:
        os.close(folder)
    return folder == _TAKEN


_NONE, _TAKEN = -1, -2


def _lock(path: Path, kind: int) -> int:
    """Return the folder's descriptor, which holds the lock; or one of the above."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return _NONE
    try:
        fcntl.flock(folder, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        return _TAKEN
    except OSError:  # a file system that locks no folders
        os.close(folder)
        return _NONE
    return folder


# --- a client's connections: found, lost, found again


BEAT_S: Final = 1.0
_ANSWER_S: Final = 30.0
"""An owner that leaves the heart unanswered for so long was stopped, say."""
_HELLO_S: Final = 5.0
_OPENING_S: Final = 600.0
"""So long a call waits for an owner that is opening the store: kernels are compiled, say."""
_AGAIN_S: Final = 0.02
_IDLE_MAX: Final = 8
"""Connections that are kept for the next calls."""
_NOBODY: Final = (
    *NOBODY,
    errno.EAGAIN,  # it was stopped, and more wait at its door than the kernel lets
)

Answered = tuple[Header, list[Part]]


class _NobodyError(Exception):
    """No process serves the store at present."""


class _Slot:
    """A connection, or the place of one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.wire: Wire | None = None
        self.asked_count = 0
        """Questions so far: the owner keeps what it answered to the last one."""

    def drop(self) -> None:
        if self.wire is not None:
            self.wire.close()
            self.wire = None


class Link:
    """The connections of one client; any number of threads ask through it."""

    def __init__(
        self, path: Path, patience_s: float, on_nobody: Callable[[], None] | None = None
    ) -> None:
        """`patience_s`: how long a call waits for an owner. `on_nobody`: called if none is."""
        check_interpreter()
        self.path, self.patience_s = path, patience_s
        self._on_nobody = on_nobody
        self.closed = Flag()
        self.problem: BaseException | None = None
        """What keeps `on_nobody` from having an owner, to be raised by who asks."""
        self._renew()
        _links.add(self)

    def _renew(self) -> None:
        self.session = os.urandom(6).hex()
        self.log_end = 0  # the log has come so far, as somebody was told
        self._numbers = count(1)
        self._idle: list[_Slot] = []
        self._unconnected: list[_Slot] = []
        self._all: weakref.WeakSet[_Slot] = weakref.WeakSet()
        self._heart: Wire | None = None
        self._thread: BackgroundThread | None = None
        self._lock = Lock()

    def start(self) -> None:
        """Have the heart beat, if it does not."""
        with self._lock.guard():
            if self._thread is None and not self.closed.is_set():
                thread = BackgroundThread("timerstore-heart", self._beat, self._ended)
                thread.start()
                self._thread = thread

    # --- asking

    def ask(
        self,
        name: str,
        arguments: dict[str, Any],
        parts: Sequence[Part] = (),
        *,
        is_repeatable: bool = True,
        waits: bool = True,
    ) -> Answered:
        """Return what the owner answers; raises what the call raised there.

        Arguments are as a program has them. If the owner is lost on the way, what
        `is_repeatable` is asked of the next one. Raises StoreClosedError if there is none for a
        while (at once, unless this `waits`), or if it is not known what became of a call that is
        not repeatable.
        """
        note_blocking()
        if self._thread is None:
            self.start()
        said, slot = to_json(arguments), self._take()
        slot.asked_count += 1
        question: Header = {"call": name, "with": said, "number": slot.asked_count}
        try:
            answer = self._ask(slot, question, parts, is_repeatable, waits)
        except StoreClosedError:  # the call may have been made: the slot's next user did not ask it
            slot.drop()
            raise
        except TypeError as e:  # json has no such value
            slot.drop()
            raise wrong_arguments(name, e) from e
        except TimerStoreError:
            self._put_away(slot)
            raise
        except BaseException:  # a signal's, say: an answer may be on its way
            slot.drop()
            raise
        self._put_away(slot)
        return answer

    def _ask(
        self,
        slot: _Slot,
        question: Header,
        parts: Sequence[Part],
        is_repeatable: bool,
        waits: bool,
    ) -> Answered:
        patience_s = self.patience_s if waits else None
        while True:
            if slot.wire is None:
                slot.wire = self._wait_for_owner(str(slot.number), patience_s)
            question.setdefault("since", self.log_end)
            try:
                slot.wire.send(question, parts, FRAME_BYTES_MAX)
                header, columns = slot.wire.receive()
                break
            except LostError as e:
                slot.drop()
                if not is_repeatable:
                    raise StoreClosedError(
                        f"The process that had {self.path} open ended before it answered. It may "
                        f"have made the call {question['call']!r}: check that, then try again."
                    ) from e
                question["again"] = True
        self._note(header)
        if "error" in header:
            raise self._error(header, columns)
        return header, columns

    def _error(self, header: Header, columns: list[Part]) -> TimerStoreError:
        error = error_from_json(header)
        if columns:
            error.ids = read_ids(header["tag"], columns[0])
        return error

    def _note(self, header: Header) -> None:
        end = header.get("end")
        if isinstance(end, int) and end > self.log_end:
            self.log_end = end

    def check_open(self) -> None:
        """Refuse a client that was closed."""
        if self.closed.is_set():
            raise StoreClosedError(f"This client of {self.path} was closed. Connect again.")

    # --- slots

    def _take(self) -> _Slot:
        for slots in (self._idle, self._unconnected):
            try:
                return slots.pop()
            except IndexError:
                continue
        slot = _Slot(next(self._numbers))
        self._all.add(slot)
        return slot

    def _put_away(self, slot: _Slot) -> None:
        if len(self._idle) < _IDLE_MAX and not self.closed.is_set():
            self._idle.append(slot)
        else:
            _say_bye(slot)
            self._unconnected.append(slot)

    def _wait_for_owner(self, slot: str, patience_s: float | None) -> Wire:
        """Return a connection to the process that owns the store, or will soon.

        `patience_s`: None for one that owns it now.
        """
        began_s = time.monotonic()
        while True:
            self.check_open()
            try:
                return self._connect(slot)
            except (LostError, _NobodyError) as e:
                if self.problem is not None:
                    raise self.problem.with_traceback(None) from None
                if patience_s is None or self._is_over(time.monotonic() - began_s, patience_s):
                    raise StoreClosedError(self._nobody()) from e
            self.closed.wait(_AGAIN_S)

    def _is_over(self, waited_s: float, patience_s: float) -> bool:
        """Tell whether to wait no longer: for one that is opening the store that is long."""
        if waited_s < patience_s:
            return False
        return waited_s >= _OPENING_S or not is_taken_over(self.path)

    def _nobody(self) -> str:
        who = holder(self.path)
        text = f"No process has served {self.path} for {self.patience_s:g} s. "
        if who == f" (pid {os.getpid()})":
            return (
                f"{text}This process{who} has it open itself: use that store, or call "
                "timerstore.serve(store)."
            )
        if who:
            text += (
                f"The process{who} may have it open: let that one call timerstore.serve(store). "
            )
        return f"{text}{'Otherwise start' if who else 'Start'} `timerstore serve`, or open it."

    def _connect(self, slot: str) -> Wire:
        """Return a connection on which the owner knows us.

        Raises _NobodyError, LostError if there is none just now; for good, what it told.
        """
        try:
            sock = connect(self.path, SOCKET_NAME, _ANSWER_S)
        except OSError as e:
            if e.errno in _NOBODY:
                raise _NobodyError from e
            raise not_asked(self.path, e) from e
        wire = Wire(sock)
        try:
            wire.limit(_HELLO_S, _HELLO_S)
            hello = {"protocol": PROTOCOL, "session": self.session, "slot": slot}
            wire.send(hello | {"shares": self._on_nobody is not None})
            header, _ = wire.receive()
            if "error" in header:
                error = error_from_json(header)
                if isinstance(error, StoreLockedError) and is_taken_over(self.path):
                    raise _NobodyError  # it will be served
                raise error
            wire.limit(0, _ANSWER_S)
        except BaseException:
            wire.close()
            raise
        self._note(header)
        return wire

    # --- the heart

    def _ended(self, error: BaseException) -> None:
        self.problem = error

    def _beat(self) -> None:
        while not self.closed.is_set():
            try:
                wire = self._heart = self._connect("heart")
            except _NobodyError as e:
                if isinstance(e.__cause__, BlockingIOError):  # it was stopped
                    self._end_all()
                if self._on_nobody is not None:
                    self._on_nobody()
                self.closed.wait(_AGAIN_S)
                continue
            except (LostError, TimerStoreError) as e:  # the caller is told
                if isinstance(e, LostError):  # a call under way would wait for it for ever
                    self._end_all()
                self.closed.wait(0.2)
                continue
            self.problem = None
            try:
                wire.limit(_ANSWER_S, _ANSWER_S)
                while not self.closed.is_set():
                    wire.send({"call": "beat"})
                    self._note(wire.receive()[0])
                    if wire.has_more(BEAT_S):
                        break  # it ends: an owner says nothing by itself
            except LostError:
                if not self.closed.is_set():
                    self._end_all()
            finally:
                wire.close()

    def _end_all(self) -> None:
        """Have the calls that are under way look for another owner."""
        for slot in list(self._all):
            wire = slot.wire
            if wire is not None:
                wire.end()

    # --- the end

    def close(self) -> None:
        """Say good-bye; what was pulled, but not acknowledged, comes again."""
        if self.closed.is_set():
            return
        self.closed.set()
        heart = self._heart
        if heart is not None:
            heart.end()
        while self._idle:
            _say_bye(self._idle.pop())
        self._end_all()
        if self._thread is not None:
            self._thread.join()

    def check_session(self, session: str) -> None:
        """Refuse what was pulled before a fork."""
        if session != self.session:
            raise ForkedProcessError(
                "The parent process pulled these messages. Pull in the child process."
            )

    def forget(self) -> None:
        """In a forked child: leave the connections to the parent, and be a client of its own."""
        for slot in list(self._all):
            slot.drop()
        if self._heart is not None:
            self._heart.close()
        self._renew()


def check_patience(timeout: Any) -> float:
    """Return how many seconds a call waits for an owner, or refuse it."""
    seconds = math.inf if (checked := check_timeout(timeout)) is None else checked
    if seconds < 0:
        raise InvalidArgumentError(f"timeout is {timeout!r}. Pass 0 or more seconds.")
    return seconds


def _say_bye(slot: _Slot) -> None:
    if slot.wire is not None:
        with contextlib.suppress(LostError):
            slot.wire.send({"call": "bye"})
        slot.drop()


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork() -> None:
    for link in list(_links):
        link.forget()


os.register_at_fork(after_in_child=_after_fork)


def has_ended(store: AnyStore, error: Exception) -> bool:
    """Tell whether an error says that a store works no more: it was closed, or has failed.

    If only the process that has it open is gone, a client may ask again: the next one will answer.
    """
    return isinstance(error, StoreClosedError) and not getattr(store, "_may_wait", False)
