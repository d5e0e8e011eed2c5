"""The owner's end: one thread that listens at the store's socket, another for each who came in."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from timerstore.control.calls import Call, ask
from timerstore.control.socketfile import end_listening, is_allowed, listen
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
"""Connections that are served at once; others wait in the kernel's queue."""
IDLE_S: Final = 5.0
"""A connection on which nothing is asked for so long is closed."""
_CLOSE_S: Final = 5.0


class Door:
    """Listens for one open store. `close` may be called twice."""

    def __init__(self, path: Path, calls: Mapping[str, Call]) -> None:
        """Listen; raises OSError where the file system knows no sockets."""
        self._path, self._calls = path, dict(calls)
        self._guests: set[socket.socket] = set()
        self._lock, self._room = threading.Lock(), threading.Semaphore(GUESTS_MAX)
        self._closing = Flag()
        self._socket = listen(path, SOCKET_NAME)
        _doors.add(self)
        try:
            self._thread = BackgroundThread("timerstore-door", self._run, self._ended)
            self._thread.start()
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        """Let nobody in any more; who is inside gets an end. Not from inside a call."""
        self._closing.set()
        self._let_go()
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
        self._socket.close()
        for guest in list(self._guests):  # `close` would wait for the handler's files
            with contextlib.suppress(OSError):
                os.close(guest.detach())

    def _let_go(self) -> None:
        end_listening(self._socket, self._path, SOCKET_NAME)

    def _ended(self, error: BaseException) -> None:
        log.error("%s: nobody can ask it from outside any more: %r", self._path, error)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._room.acquire()
            try:
                guest, _ = self._socket.accept()
            except OSError:
                self._room.release()
                if self._closing.is_set() or self._socket.fileno() < 0:
                    return
                self._closing.wait(0.2)  # no descriptor is left, say
                continue
            with self._lock:
                self._guests.add(guest)
            thread = BackgroundThread("timerstore-guest", partial(self._serve, guest), _dropped)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                self._leave(guest)

    def _serve(self, guest: socket.socket) -> None:
        from timerstore.control.handler import handle  # http.server takes its time

        try:
            if is_allowed(guest):
                guest.settimeout(IDLE_S)
                handle(guest, self._answer)
        except OSError:
            pass  # it went
        finally:
            self._leave(guest)

    def _leave(self, guest: socket.socket) -> None:
        with self._lock:
            self._guests.discard(guest)
        guest.close()
        self._room.release()

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


def _dropped(error: BaseException) -> None:
    log.error("a question from outside was dropped: %r", error)


_doors: weakref.WeakSet[Door] = weakref.WeakSet()


def _after_fork() -> None:
    for door in list(_doors):
        door.forget()
    _doors.clear()


os.register_at_fork(after_in_child=_after_fork)
