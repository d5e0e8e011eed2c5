"""Serving an open store to clients; letting the shell ask it."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import weakref
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Final

from timerstore.errors import (
    InvalidArgumentError,
    NotAStoreError,
    StoreAccessError,
    StoreFullError,
    StoreLockedError,
    TimerStoreError,
)
from timerstore.jit.guards import Lock
from timerstore.services.world.background import BackgroundThread, Flag
from timerstore.share.answers import MADE_ONCE, Answers, Asked
from timerstore.share.framecolumns import write_ids
from timerstore.share.session import Answered, LastAnswers, Session
from timerstore.share.wire import (
    FRAME_BYTES_MAX,
    PROTOCOL,
    SOCKET_NAME,
    Header,
    Listener,
    LostError,
    Part,
    Wire,
    error_to_json,
    is_allowed,
)
from timerstore.store.store import TimerStore
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.oserrors import told_of
from timerstore.timelog.writing.frame import encode_property
from timerstore.values.ids import TimerIds
from timerstore.values.kinds import check_kind
from timerstore.values.no_pickle import Closes

# --- the owner's end: who may come in, a thread for each connection
#
# The first byte tells what somebody speaks. Clients speak frames: they say who they are and stay.
# The shell speaks frames too, asks for one thing, or for the pieces of a listing, and goes. HTTP is
# for programs that GET the store's health. A thread waits as long as its client lets it wait, and
# holds nothing meanwhile: no lock of the store, no place in a queue. Clients whose puts wait for a
# fsync wait for the same one, as threads do.


log = logging.getLogger("timerstore")

CONNECTIONS_MAX: Final = 128
"""Connections of clients at once, each a thread; a client has one, and one for each call under way.
There may be as many of others; of those that say nothing the first one makes room."""
SILENCE_S: Final = 30.0
"""A client that was not heard of for so long, stopped say, has gone: it holds nothing any more."""
_LEFT_MAX: Final = 128
_HELLO_S: Final = 5.0
_UNSERVED_S: Final = 0.25
"""A client waits so long at a store that is not served, and comes again."""
_SEND_S: Final = 30.0
_CLOSE_S: Final = 5.0
_NAME: Final = re.compile(r"[0-9a-f]{12}")
_SLOT: Final = re.compile(r"[0-9]{1,6}|heart", re.ASCII)


class Door:
    """Listens for one open store; clients are let in while it is served."""

    def __init__(self, store: TimerStore) -> None:
        """Listen; raises OSError if the file system knows no sockets."""
        self.core, self.path = store.core, store.path
        self.may_ask = store.core.engine.config.control
        """Whether the shell may, which is no client."""
        self.closing, self.serving = Flag(), Flag()
        self.sessions: dict[str, Session] = {}
        self._answers = Answers(store)
        self._life = os.urandom(4).hex()
        self._left: OrderedDict[str, LastAnswers] = OrderedDict()
        """Of clients that went without a good-bye, and may come again."""
        self._wires: set[Wire] = set()
        self._strangers: dict[Wire, None] = {}
        """Those who have not said anything yet, the first one first."""
        self._lock = Lock()
        folder = store.core.disk.folder
        assert folder is not None  # a store that is written to holds its own
        self._listener = Listener(folder, SOCKET_NAME)
        _doors.add(self)
        self._thread = BackgroundThread("timerstore-door", self._run, self._ended)
        try:
            self._thread.start()
        except BaseException:
            self._listener.close()
            raise

    @property
    def client_wires(self) -> list[Wire]:
        """The connections of clients."""
        return [wire for each in list(self.sessions.values()) for wire in list(each.wires)]

    def serve(self) -> bool:
        """Let clients in from now on; False if they were let in before."""
        with self._lock.guard():
            was_served = self.serving.is_set()
            self.serving.set()
        return not was_served

    def stop_serving(self) -> None:
        """Let no client in any more; calls that are being made end, and are answered."""
        with self._lock.guard():
            self.serving.clear()
            wires = self.client_wires
        self._send_away(wires)

    def close(self) -> None:
        """Let nobody in any more; calls that are being made end, and are answered."""
        self.closing.set()
        self.serving.set()  # a client that waits for that need not
        self._listener.close()
        self._thread.join(_CLOSE_S)
        with self._lock.guard():
            wires = list(self._wires)
        self._send_away(wires)

    def _send_away(self, wires: Collection[Wire]) -> None:
        for wire in wires:
            wire.end(socket.SHUT_RD)
        until_s = time.monotonic() + _CLOSE_S
        while not self._wires.isdisjoint(wires) and time.monotonic() < until_s:
            time.sleep(0.002)

    def forget(self) -> None:
        """Close what a forked child inherited; the file is the parent's."""
        self.closing.set()
        self._listener.forget()
        for wire in list(self._wires):
            wire.close()

    def _ended(self, error: BaseException) -> None:
        log.error("%s: other processes cannot ask this store any more: %r", self.path, error)

    # --- connections

    def _run(self) -> None:
        while not self.closing.is_set():
            try:
                guest = self._listener.accept()
            except OSError:
                if self.closing.is_set() or self._listener.fileno() < 0:
                    return
                self.closing.wait(0.2)  # no descriptor is left, say
                continue
            if guest is not None:
                self._let_in(guest)
            self._sweep()

    def _let_in(self, guest: socket.socket) -> None:
        if not is_allowed(guest):
            guest.close()
            return
        wire = Wire(guest)
        with self._lock.guard():
            is_full = len(self._wires) - len(self.client_wires) >= CONNECTIONS_MAX
            if is_full:
                silent = (each for each in self._strangers if not each.has_more(0))
                if (first := next(silent, None)) is not None:
                    del self._strangers[first]
                    first.end(socket.SHUT_RD)  # what it has sent by now is answered
                    is_full = False
            if not is_full:
                self._wires.add(wire)
                self._strangers[wire] = None
        if is_full:
            wire.limit(0.1, 0.1)
            self._refuse(wire, self._full())
            wire.close()
            return
        thread = BackgroundThread("timerstore-guest", partial(self._meet, wire), _dropped)
        try:
            thread.start()
        except StoreFullError:  # the system has no thread left
            self._leave(wire)

    def _full(self) -> TimerStoreError:
        return StoreAccessError(
            f"{self.path} has {CONNECTIONS_MAX} connections already. Use fewer threads."
        )

    def _refuse(self, wire: Wire, problem: TimerStoreError) -> None:
        with suppress(LostError):
            wire.send(error_to_json(problem))

    def _sweep(self) -> None:
        oldest_s = time.monotonic() - SILENCE_S
        with self._lock.guard():
            silent = [each for each in self.sessions.values() if each.seen_s < oldest_s]
            wires = [wire for each in silent for wire in each.wires]
        for wire in wires:
            wire.end()

    def _meet(self, wire: Wire) -> None:
        """Find out who it is, and answer."""
        try:
            wire.limit(_HELLO_S, _SEND_S)
            if wire.first().isalpha():
                from timerstore.share.http_get import answer_get

                answer_get(wire.socket, partial(self._answer_get, wire))
                return
            hello, parts = wire.receive(FRAME_BYTES_MAX)
            self._know(wire)
            problem = self._refusal(hello)
            if problem is not None:
                self._refuse(wire, problem)
            elif "call" in hello:
                self._answer_guest(wire, hello, parts)
            elif hello.get("shares") is True and self._stays_unserved():
                self._refuse(wire, self._unshared())
            else:
                self._answer_client(wire, hello["session"], hello["slot"])
        except (LostError, OSError):
            pass  # it has gone
        finally:
            self._leave(wire)

    def _know(self, wire: Wire) -> None:
        with self._lock.guard():
            self._strangers.pop(wire, None)

    def _leave(self, wire: Wire) -> None:
        wire.close()
        with self._lock.guard():
            self._wires.discard(wire)
            self._strangers.pop(wire, None)

    def _refusal(self, hello: Header) -> TimerStoreError | None:
        """Return why somebody who speaks frames cannot be answered, or None."""
        if hello.get("protocol") != PROTOCOL:
            from timerstore.version import __version__  # which takes a while to find out

            return NotAStoreError(
                f"{self.path} is served by timerstore {__version__}, which speaks protocol "
                f"{PROTOCOL}, and this client speaks protocol {hello.get('protocol')!r}. Use the "
                "same version of timerstore in both."
            )
        if "call" in hello:
            return None
        names = hello.get("session"), hello.get("slot")
        if not all(isinstance(each, str) for each in names):
            return InvalidArgumentError("The client did not say who it is. Send session and slot.")
        if not (_NAME.fullmatch(hello["session"]) and _SLOT.fullmatch(hello["slot"])):
            return InvalidArgumentError(
                "The client sent a session or slot that is impossible. Send a session of 12 hex "
                "digits, and a number as slot."
            )
        return None

    # --- clients

    def _stays_unserved(self) -> bool:
        """Tell whether the store was opened to be used by this process alone, and is."""
        return not (self.serving.wait(_UNSERVED_S) or self.closing.is_set())

    def _unshared(self) -> TimerStoreError:
        return StoreLockedError(
            f"{self.path} is open in a process (pid {os.getpid()}) that does not share it. Open "
            "it there with share=True too, or let that process call timerstore.serve(store)."
        )

    def _answer_client(self, wire: Wire, name: str, slot: str) -> None:
        """Answer a client until it ends the connection; nothing if the store is not served."""
        if not self.serving.wait(_UNSERVED_S):
            return
        with self._lock.guard():
            if self.closing.is_set() or not self.serving.is_set():
                return
            is_full = len(self.client_wires) >= CONNECTIONS_MAX
            if not is_full:
                session = self._enter(name, wire)
        if is_full:
            self._refuse(wire, self._full())
            return
        try:
            with session.slot(slot).guard():  # its call of an earlier connection has ended
                wire.send({"life": self._life, "end": self.core.engine.commitlog.end})
                wire.limit(0, _SEND_S)
                self._answer_all(wire, session, slot)
        finally:
            self._leave_session(wire, session)

    def _enter(self, name: str, wire: Wire) -> Session:
        session = self.sessions.get(name)
        if session is None:
            session = self.sessions[name] = Session(name, self._life)
            session.answers = self._left.pop(name, session.answers)
        session.wires.add(wire)
        session.seen_s = time.monotonic()
        return session

    def _leave_session(self, wire: Wire, session: Session) -> None:
        wire.close()
        with self._lock.guard():
            session.wires.discard(wire)
            if session.wires:
                return
            del self.sessions[session.name]
            if len(session.answers):
                self._left[session.name] = session.answers
                while len(self._left) > _LEFT_MAX:
                    self._left.popitem(last=False)
        session.release()

    def _answer_all(self, wire: Wire, session: Session, slot: str) -> None:
        """Answer what is asked on a connection until it ends."""
        pulled: str | None = None  # of the last answer: it may not have arrived
        put_by = f"{session.name}.{slot}"
        carried = encode_property(fmt.PROPERTY_PUT_BY, put_by.encode())
        try:
            while not self.closing.is_set():
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
                    asked = Asked(session, put_by, parts, since, again, carried)
                    answered = self._answer(asked, question)
                    pulled = asked.pulled
                    if isinstance(name, str) and name in MADE_ONCE:
                        session.answers.keep(slot, number, answered)
                header, columns = answered
                header["end"] = self.core.engine.commitlog.end
                wire.send(header, columns)
        finally:
            if pulled is not None:
                session.give_back(pulled)

    # --- questions

    def _answer_guest(self, wire: Wire, question: Header, parts: list[Part]) -> None:
        """Answer who asks as nobody's client until it goes: most ask one thing, a listing more.

        What it pulls is given back.
        """
        session = Session("", self._life)
        try:
            wire.send(*self._answer_one(session, question, parts))
            wire.limit(0, _SEND_S)
            while not self.closing.is_set():
                question, parts = wire.receive(FRAME_BYTES_MAX)
                wire.send(*self._answer_one(session, question, parts))
        finally:
            session.release()

    def _answer_one(self, session: Session, question: Header, parts: list[Part]) -> Answered:
        if not self.may_ask:
            problem = (
                f"{self.path} answers only clients, because its Config.control is False. Ask it"
            )
            return error_to_json(StoreAccessError(f"{problem} in its own process.")), ()
        return self._answer(Asked(session, None, parts, 0, False), question)

    def _answer_get(self, wire: Wire, name: str) -> Header:
        self._know(wire)
        return self._answer_one(Session("", self._life), {"call": name}, [])[0]

    def _answer(self, asked: Asked, question: Header) -> Answered:
        """Return a header with its parts; raises LostError if the store is being closed."""
        name = question.get("call")
        try:
            result, columns = self._answers.answer(asked, name, question.get("with", {}))
            return {"result": result}, columns
        except Exception as e:
            if self.core.closed:  # the next owner of the store answers
                raise LostError("the store is being closed") from e
            if not isinstance(e, TimerStoreError):
                log.exception("%s: the call %r of another process failed", self.path, name)
            header, columns = error_to_json(e), list[Part]()
            ids = getattr(e, "ids", ())
            if isinstance(ids, TimerIds) and len(ids):
                header["tag"], columns = self.core.engine.store_tag, write_ids(ids)
            return header, columns


def _dropped(error: BaseException) -> None:
    log.error("a connection of another process was closed: %r", error)


_doors: weakref.WeakSet[Door] = weakref.WeakSet()


def find_door(store: TimerStore) -> Door | None:
    """Return the door of an open store, if it has one."""
    doors = [each for each in list(_doors) if each.core is store.core]
    return next((each for each in doors if not each.closing.is_set()), None)


def _after_fork() -> None:
    for door in list(_doors):
        door.forget()
    _doors.clear()


os.register_at_fork(after_in_child=_after_fork)


# --- serving a store to clients; letting the shell ask it


class Server(Closes):
    """Serves one open store to other processes; made by `serve`. `close` may be called twice."""

    def __init__(self, door: Door) -> None:
        if not door.serve():
            raise StoreAccessError(f"The store {door.path} is served already. Use that server.")
        self._door, self._closed = door, False

    def close(self) -> None:
        """Let no client in any more; calls that are being made end, and are answered."""
        if self._closed or self._door.closing.is_set():
            return
        self._closed = True
        if self._door.may_ask:
            self._door.stop_serving()
        else:
            self._door.close()

    def __repr__(self) -> str:
        return f"<Server {str(self._door.path)!r}, {len(self._door.client_wires)} connections>"

    @property
    def client_count(self) -> int:
        """How many clients there are."""
        return len(self._door.sessions)


def serve(store: TimerStore) -> Server:
    """Serve an open store to other processes of this machine and user, until it is closed.

    They connect with `timerstore.connect`, or `timerstore.open(path, share=True)`. Raises
    StoreAccessError if it is served already, or its file system has no sockets.

    >>> with timerstore.open("timers/") as store:
    ...     server = timerstore.serve(store)
    """
    check_kind(store, TimerStore, "store")
    store.core.check_writable()
    if store.core.clock.manual:
        raise InvalidArgumentError(
            "A store with a manual clock cannot be served to other processes. Do not call serve."
        )
    with told_of(store.path):
        return Server(find_door(store) or _open(store))


def let_others_ask(store: TimerStore) -> TimerStore:
    """Let the shell ask an open store, until that is closed; if it cannot, that is logged."""
    core = store.core
    if core.clock.manual or not core.engine.config.control:
        return store
    try:
        _open(store)
    except (OSError, StoreFullError) as e:  # a file system without sockets, say
        fields = {"store": str(core.path)}
        log.info("%s cannot be asked by other processes: %s", core.path, e, extra=fields)
    except BaseException:
        store.close()
        raise
    return store


def _open(store: TimerStore) -> Door:
    door = Door(store)
    store.core.at_close.insert(0, door.close)
    return door
