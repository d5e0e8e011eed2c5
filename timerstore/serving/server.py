"""The owner's end: one thread that listens, another for each connection.

A thread waits where its client lets it wait, and holds nothing meanwhile: no lock of the store, no
place in a queue. Clients whose puts wait for a fsync wait for the same one, as threads do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import threading
import time
import weakref
from collections import OrderedDict
from functools import partial
from types import TracebackType
from typing import Final

from timerstore.control.socketfile import Listener, is_allowed
from timerstore.control.wire import error_to_json
from timerstore.errors import (
    InvalidArgumentError,
    NotAStoreError,
    StoreAccessError,
    TimerStoreError,
)
from timerstore.ids import TimerIds
from timerstore.kinds import check_kind
from timerstore.services.background import BackgroundThread, Flag
from timerstore.serving.answers import MADE_ONCE, Answers, Asked, write_ids
from timerstore.serving.session import Answered, LastAnswers, Session
from timerstore.serving.wire import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    SOCKET_NAME,
    Header,
    LostError,
    Part,
    Wire,
)
from timerstore.staying import Stays
from timerstore.store import TimerStore
from timerstore.timelog.oserrors import told_of

log = logging.getLogger("timerstore")

CONNECTIONS_MAX: Final = 128
"""Connections at once, each a thread; a client has one, and one for each call under way."""
SILENCE_S: Final = 30.0
"""A client that was not heard of for so long, stopped say, has gone: it holds nothing any more."""
_LEFT_MAX: Final = 128
_HELLO_S: Final = 5.0
_SEND_S: Final = 30.0
_HELLO_BYTES_MAX: Final = 4_096
_CLOSE_S: Final = 5.0
_NAME: Final = re.compile(r"[0-9a-f]{12}")
_SLOT: Final = re.compile(r"[0-9]{1,6}|heart", re.ASCII)


class Server(Stays):
    """Serves one open store to other processes; made by `serve`. `close` may be called twice."""

    def __init__(self, store: TimerStore) -> None:
        """Listen."""
        self._store, self._core, self._path = store, store.core, store.path
        self._answers = Answers(store)
        self._life = secrets.token_hex(4)
        self._sessions: dict[str, Session] = {}
        self._left: OrderedDict[str, LastAnswers] = OrderedDict()
        """Of clients that went without a good-bye, and may come again."""
        self._wires: set[Wire] = set()
        self._strangers: dict[Wire, None] = {}
        """Those of which nobody has said yet who they are, the first one first."""
        self._lock = threading.Lock()
        self._closing = Flag()
        self._listener = Listener(self._path, SOCKET_NAME)
        _servers.add(self)
        self._thread = BackgroundThread("timerstore-serve", self._run, self._ended)
        try:
            self._thread.start()
        except BaseException:
            self._listener.close()
            raise

    def close(self) -> None:
        """Let nobody in any more; calls that are being made end, and are answered."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._listener.close()
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.end(socket.SHUT_RD)
        self._thread.join(_CLOSE_S)
        until_s = time.monotonic() + _CLOSE_S
        while self._wires and time.monotonic() < until_s:
            time.sleep(0.002)

    def __enter__(self) -> Server:
        """Return it; leaving the block closes it, not the store."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the path, and how many connections there are."""
        return f"<Server {str(self._path)!r}, {len(self._wires)} connections>"

    @property
    def client_count(self) -> int:
        """How many clients there are."""
        return len(self._sessions)

    def _forget(self) -> None:
        """Close what a forked child inherited; the file is the parent's."""
        self._closing.set()
        self._listener.forget()
        for wire in list(self._wires):
            wire.close()

    def _ended(self, error: BaseException) -> None:
        log.error("%s is not served any more: %r", self._path, error)

    # --- connections

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                guest = self._listener.accept()
            except OSError:
                if self._closing.is_set() or self._listener.fileno() < 0:
                    return
                self._closing.wait(0.2)  # no descriptor is left, say
                continue
            if guest is not None:
                self._let_in(guest)
            self._sweep()

    def _let_in(self, guest: socket.socket) -> None:
        if not is_allowed(guest):
            guest.close()
            return
        try:
            wire = Wire(guest)
        except OSError:  # no descriptor is left
            guest.close()
            return
        with self._lock:
            full = len(self._wires) >= CONNECTIONS_MAX
            if full and self._strangers:  # it has said nothing yet, and may come again
                next(iter(self._strangers)).end()
                full = len(self._wires) >= 2 * CONNECTIONS_MAX
            if not full:
                self._wires.add(wire)
                self._strangers[wire] = None
        if full:
            text = f"{self._path} has {CONNECTIONS_MAX} connections already. Use fewer threads."
            with contextlib.suppress(LostError):
                wire.limit(0.1, 0.1)
                wire.send(error_to_json(StoreAccessError(text)))
            wire.close()
            return
        thread = BackgroundThread("timerstore-client", partial(self._serve, wire), _dropped)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            self._leave(wire, None)

    def _sweep(self) -> None:
        """Send away who was not heard of."""
        oldest_s = time.monotonic() - SILENCE_S
        with self._lock:
            silent = [each for each in self._sessions.values() if each.seen_s < oldest_s]
            wires = [wire for each in silent for wire in each.wires]
        for wire in wires:
            wire.end()

    def _serve(self, wire: Wire) -> None:
        session = None
        try:
            wire.limit(_HELLO_S, _SEND_S)
            hello, _ = wire.receive(_HELLO_BYTES_MAX)
            problem = self._refusal(hello)
            if problem is not None:
                wire.send(error_to_json(problem))
                return
            session = self._enter(hello["session"], wire)
            slot = hello["slot"]
            with session.slot(slot):  # its call of an earlier connection has ended
                wire.send({"life": self._life, "end": self._core.engine.commitlog.end})
                wire.limit(0, _SEND_S)
                self._answer_all(wire, session, slot)
        except LostError:
            pass
        finally:
            self._leave(wire, session)

    def _refusal(self, hello: Header) -> TimerStoreError | None:
        """Return why somebody cannot be served, or None."""
        if hello.get("protocol") != PROTOCOL:
            return NotAStoreError(
                f"{self._path} is served by timerstore {_version()}, which speaks protocol "
                f"{PROTOCOL}, and this client {hello.get('protocol')!r}. "
                "Have both use the same version."
            )
        names = hello.get("session"), hello.get("slot")
        if not all(isinstance(each, str) for each in names):
            return InvalidArgumentError("A client says who it is. Send session and slot.")
        if not (_NAME.fullmatch(hello["session"]) and _SLOT.fullmatch(hello["slot"])):
            return InvalidArgumentError("This is no client's name. Send 12 hex digits, a number.")
        return None

    def _enter(self, name: str, wire: Wire) -> Session:
        with self._lock:
            session = self._sessions.get(name)
            if session is None:
                session = self._sessions[name] = Session(name, self._life)
                session.answers = self._left.pop(name, session.answers)
            session.wires.add(wire)
            self._strangers.pop(wire, None)
            session.seen_s = time.monotonic()
            return session

    def _leave(self, wire: Wire, session: Session | None) -> None:
        wire.close()
        gone = False
        if session is not None:
            with self._lock:
                session.wires.discard(wire)
                gone = not session.wires
                if gone:
                    del self._sessions[session.name]
                    if len(session.answers):
                        self._left[session.name] = session.answers
                        while len(self._left) > _LEFT_MAX:
                            self._left.popitem(last=False)
        try:
            if gone and session is not None:
                session.release()
        finally:
            with self._lock:
                self._wires.discard(wire)
                self._strangers.pop(wire, None)

    # --- questions

    def _answer_all(self, wire: Wire, session: Session, slot: str) -> None:
        """Answer what is asked on a connection until it ends."""
        pulled: str | None = None  # of the last answer: it may not have arrived
        try:
            while not self._closing.is_set():
                question, parts = wire.receive(FRAME_BYTES_MAX)
                pulled, session.seen_s = None, time.monotonic()
                name = question.get("call")
                if name == "bye":
                    session.answers.forget(slot)
                    return
                again, number = question.get("again") is True, question.get("number")
                answered = session.answers.find(slot, number) if again else None
                if answered is None:
                    since = question.get("since")
                    since = since if isinstance(since, int) else 0
                    asked = Asked(session, f"{session.name}.{slot}", parts, since, again)
                    answered = self._answer(asked, question)
                    pulled = asked.pulled
                    if answered is None:
                        return
                    if isinstance(name, str) and name in MADE_ONCE:
                        session.answers.keep(slot, number, answered)
                header, columns = answered
                header["end"] = self._core.engine.commitlog.end
                wire.send(header, columns)
        finally:
            if pulled is not None:
                session.give_back(pulled)

    def _answer(self, asked: Asked, question: Header) -> Answered | None:
        """Return a header with its parts; None where the store is being closed."""
        name = question.get("call")
        try:
            result, columns = self._answers.answer(asked, name, question.get("with", {}))
            return {"result": result}, columns
        except Exception as e:
            if self._core.closed:  # whoever owns the store next answers
                return None
            if not isinstance(e, TimerStoreError):
                log.exception("%s: the call %r of a client failed", self._path, name)
            header, columns = error_to_json(e), list[Part]()
            ids = getattr(e, "ids", ())
            if isinstance(ids, TimerIds) and len(ids):
                header["tag"], columns = self._core.engine.store_tag, write_ids(ids)
            return header, columns


def serve(store: TimerStore) -> Server:
    """Serve an open store to other processes of this machine and user, until it is closed.

    They come with `timerstore.connect`, or `timerstore.open(path, share=True)`. Raises
    StoreAccessError where it is served already, or its file system knows no sockets.

    >>> with timerstore.open("timers/") as store:
    ...     server = timerstore.serve(store)
    """
    check_kind(store, TimerStore, "store")
    core = store.core
    core.check_writable()
    if core.clock.manual:
        raise InvalidArgumentError("A store with a manual clock has one process. Do not serve it.")
    if any(each._core is core and not each._closing.is_set() for each in list(_servers)):
        raise StoreAccessError(f"{store.path} is served already. Use that server.")
    with told_of(store.path):
        server = Server(store)
    core.at_close.insert(0, server.close)
    return server


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("timerstore")
    except PackageNotFoundError:
        return "of an unknown version"


def _dropped(error: BaseException) -> None:
    log.error("a client was dropped: %r", error)


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_servers):
        server._forget()
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)
