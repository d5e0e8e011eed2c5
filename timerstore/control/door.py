"""The owner's end: one thread that listens at the store's socket, another for each who came in."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from timerstore.control.calls import Call, ask
from timerstore.control.socketfile import Listener, is_allowed
from timerstore.control.wire import (
    SOCKET_NAME,
    error_to_json,
    from_json,
    to_json,
)
from timerstore.core import Core
from timerstore.errors import InvalidArgumentError, TimerStoreError
from timerstore.services.background import BackgroundThread, Flag

log = logging.getLogger("timerstore")

GUESTS_MAX: Final = 32
"""Connections that are served at once; of those that ask nothing the oldest makes room."""
IDLE_S: Final = 5.0
"""A connection on which nothing is asked for so long is closed."""
_SILENT_S: Final = 0.5
"""Who has asked nothing for so long may be sent away for others."""
_CLOSE_S: Final = 5.0


class Door:
    """Listens for one open store. `close` may be called twice."""

    def __init__(self, path: Path, calls: Mapping[str, Call]) -> None:
        """Listen; raises OSError where the file system knows no sockets."""
        self._path, self._calls = path, dict(calls)
        self._guests: dict[socket.socket, float] = {}
        """Who is inside, the first one first, and since when it asks nothing."""
        self._lock = threading.Lock()
        self._left, self._closing = Flag(), Flag()
        self._listener = Listener(path, SOCKET_NAME)
        _doors.add(self)
        try:
            self._thread = BackgroundThread("timerstore-door", self._run, self._ended)
            self._thread.start()
        except BaseException:
            self._listener.close()
            raise

    def close(self) -> None:
        """Let nobody in any more; who is inside gets an end. Not from inside a call."""
        self._closing.set()
        self._left.set()
        self._listener.close()
        with self._lock:
            guests = list(self._guests)
        for guest in guests:
            with contextlib.suppress(OSError):
                guest.shutdown(socket.SHUT_RDWR)
        self._thread.join(_CLOSE_S)
        self._calls.clear()

    def forget(self) -> None:
        """Close what a forked child inherited; the file is the parent's."""
        self._closing.set()
        self._listener.forget()
        for guest in list(self._guests):  # `close` would wait for the handler's files
            with contextlib.suppress(OSError):
                os.close(guest.detach())

    def _ended(self, error: BaseException) -> None:
        log.error("%s: nobody can ask it from outside any more: %r", self._path, error)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                guest = self._listener.accept()
            except OSError:
                if self._closing.is_set() or self._listener.fileno() < 0:
                    return
                self._closing.wait(0.2)  # no descriptor is left, say
                continue
            if guest is None:
                continue
            self._make_room()
            with self._lock:
                self._guests[guest] = time.monotonic()
            thread = BackgroundThread("timerstore-guest", partial(self._serve, guest), _dropped)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                self._leave(guest)

    def _make_room(self) -> None:
        """Wait until one more may be served; the first one that asks nothing has to go."""
        while not self._closing.is_set():
            self._left.clear()
            with self._lock:
                if len(self._guests) < GUESTS_MAX:
                    return
                before_s = time.monotonic() - _SILENT_S
                idle = [g for g, s in self._guests.items() if s < before_s and not _is_asking(g)]
                for guest in idle[:1]:
                    self._guests[guest] = math.inf  # once
                    with contextlib.suppress(OSError):
                        guest.shutdown(socket.SHUT_RDWR)
            self._left.wait(_SILENT_S / 5)

    def _serve(self, guest: socket.socket) -> None:
        from timerstore.control.handler import handle  # http.server takes its time

        try:
            if is_allowed(guest):
                guest.settimeout(IDLE_S)
                handle(guest, partial(self._answer_guest, guest))
        except OSError:
            pass  # it went
        finally:
            self._leave(guest)

    def _leave(self, guest: socket.socket) -> None:
        with self._lock:
            self._guests.pop(guest, None)
        guest.close()
        self._left.set()

    def _answer_guest(
        self, guest: socket.socket, name: str, content: bytes
    ) -> tuple[int, dict[str, Any]]:
        """Answer, while the guest is not sent away."""
        self._note(guest, math.inf)
        try:
            return self._answer(name, content)
        finally:
            self._note(guest, time.monotonic())

    def _note(self, guest: socket.socket, since_s: float) -> None:
        with self._lock:
            if self._guests.pop(guest, None) is not None:
                self._guests[guest] = since_s

    def _answer(self, name: str, content: bytes) -> tuple[int, dict[str, Any]]:
        """Return an HTTP status with the answer's object."""
        try:
            arguments = from_json(json.loads(content)) if content else {}
            if not isinstance(arguments, dict):
                raise InvalidArgumentError("The question is no JSON object. Send one.")
            return 200, {"result": to_json(ask(self._calls, name, arguments))}
        except (ValueError, RecursionError, TimerStoreError) as e:
            if not isinstance(e, TimerStoreError):
                e = InvalidArgumentError(f"The question is no JSON: {e}. Send an object.")
            return 404 if name not in self._calls else 409, error_to_json(e)
        except Exception as e:
            log.exception("%s: the call %r from outside failed", self._path, name)
            return 500, error_to_json(e)


def open_door(core: Core, calls: Mapping[str, Call]) -> None:
    """Let others ask an open store, until it is closed; where it cannot be, it is logged."""
    if core.clock.manual or not core.engine.config.control:
        return
    try:
        door = Door(core.path, calls)
    except (OSError, RuntimeError) as e:  # a file system without sockets, say
        fields = {"store": str(core.path)}
        log.info("%s cannot be asked by other processes: %s", core.path, e, extra=fields)
        return
    core.at_close.append(door.close)


def _is_asking(guest: socket.socket) -> bool:
    """Tell whether something has come that was not read yet."""
    poll = select.poll()
    poll.register(guest, select.POLLIN)
    return bool(poll.poll(0))


def _dropped(error: BaseException) -> None:
    log.error("a question from outside was dropped: %r", error)


_doors: weakref.WeakSet[Door] = weakref.WeakSet()


def _after_fork() -> None:
    for door in list(_doors):
        door.forget()
    _doors.clear()


os.register_at_fork(after_in_child=_after_fork)
