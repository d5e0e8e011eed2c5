"""The thread that serves the page of one store, and how it ends.

A client holds nothing but its connection, for a minute at most. Requests make their calls of the
store one after the other, in a thread of their own: however many browsers ask, the store has one
more caller. Beyond `CONNECTIONS_MAX` whoever comes is sent away, so files do not run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from timerstore.errors import InvalidArgumentError, TimerStoreError, UnknownTimerError
from timerstore.page.guard import HEADERS, Guard, RefusedError, read_fields
from timerstore.page.history import EVERY_S, History
from timerstore.page.views import CHANGES, LOOKS, Views, render
from timerstore.services.world.background import BackgroundThread, Failure
from timerstore.store.store import TimerStore
from timerstore.values.no_pickle import Closes
from timerstore.watching.any_store import AnyStore

log = logging.getLogger("timerstore")
_quiet = logging.getLogger("timerstore.page")
_quiet.setLevel(logging.ERROR)  # else whoever sends what is no HTTP fills the program's log

CONNECTIONS_MAX: Final = 64
ASK_S: Final = 10.0
"""By then a connection has asked for something, else it ends."""
LIFE_S: Final = 60.0
"""Of a connection, whatever it does."""
_CLOSE_S: Final = 5.0
_REQUEST_S: Final = 2
"""So long requests under way are waited for when the page is closed."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_STATUS: Final = {RefusedError: 403, UnknownTimerError: 404, InvalidArgumentError: 400}
Answer = Callable[[Request], Awaitable[Response]]


class _Connection(H11Protocol):
    """A connection that ends in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.logger = _quiet
        super().connection_made(transport)
        self._end = self.loop.call_later(ASK_S, self._let_work)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()

    def _let_work(self) -> None:
        self._end = self.loop.call_later(LIFE_S - ASK_S, self.transport.abort)
        request: Any = self.cycle  # of no type that says that there is none at first
        if request is None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)


class PageServer(Closes):
    """Shows an open store to browsers, in a thread of its own, until either is closed.

    If `store` is a client, close the page before it. The store does not depend on the page: if the
    thread ends by an error, that is logged, and `check` raises it.

    >>> with timerstore.open("timers/") as store:
    ...     page = timerstore.page.PageServer(store, "127.0.0.1:8080")
    """

    def __init__(
        self,
        store: AnyStore,
        where: str = "127.0.0.1:8080",
        *,
        write: bool = False,
        token: str | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        """Serve the page at `where`, `[HOST:]PORT`; without a host to this machine alone.

        `write`: the page may retry and drop dead letters, pause and resume. `token`: 16 or more
        characters, which each browser must show once; needed unless `where` is a loopback address
        and there are no `hosts`: names by which browsers reach the page, beside the one in `where`.
        Requests for other names are refused. Raises InvalidArgumentError.
        """
        if AnyStore not in type(store).__mro__:
            raise InvalidArgumentError(
                f"store is {store!r}. Pass a TimerStore or a client; of asyncio store.sync."
            )
        self._store, self._failure = store, Failure()
        self._history = History(store)
        self._views = Views(store, self._history)
        self._core = store.core if isinstance(store, TimerStore) else None
        self._socket = _listen(where)
        try:
            port = self._socket.getsockname()[1]
            self._guard = Guard(token, write=write, port=port, path=store.path)
            names = _names(self._socket, where, hosts, has_token=token is not None)
            self.url = f"http://{names[0]}:{port}/"
            """Where the page is."""
            self._server = uvicorn.Server(self._config(names))
            run = partial(self._server.run, [self._socket])
            self._thread = BackgroundThread("timerstore-page", run, self._fail)
            self._thread.start()
        except BaseException:
            self._socket.close()
            raise
        _servers.add(self)
        if self._core is not None:
            self._core.at_close.insert(0, self._end)
            if self._core.closed:  # meanwhile, so it may have called what was there before
                self._end()
                self._core.check_open()

    def close(self) -> None:
        """Serve no more; requests under way have a few seconds."""
        self._end()
        if self._core is not None and not self._core.closed:
            with contextlib.suppress(ValueError):
                self._core.at_close.remove(self._end)

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        self._failure.check()

    def _end(self) -> None:
        self._server.should_exit = True
        self._thread.join(_CLOSE_S)
        self._socket.close()

    def _fail(self, error: BaseException) -> None:
        self._failure.keep(error)
        self._socket.close()
        log.error("the page of %s is not served any more", self._store.path, exc_info=error)

    def _config(self, names: Sequence[str]) -> uvicorn.Config:
        looks = {name: self._answering(partial(self._look, name)) for name in LOOKS}
        changes = {name: self._answering(partial(self._change, name)) for name in CHANGES}
        looks[""] = looks.pop("overview")
        changes["login"] = self._answering(self._guard.log_in, to_all=True)
        app = Starlette(
            routes=[
                *(Route(f"/{name}", look, methods=["GET"]) for name, look in looks.items()),
                *(Route(f"/{name}", act, methods=["POST"]) for name, act in changes.items()),
                Route("/style.css", _style, methods=["GET"]),
            ],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)],
            lifespan=self._looking_again,
        )
        app.router.redirect_slashes = False
        return uvicorn.Config(
            app,
            http=_Connection,
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=list(HEADERS.items()),
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=_REQUEST_S,
        )

    @contextlib.asynccontextmanager
    async def _looking_again(self, app: Starlette) -> AsyncIterator[None]:
        """Look at the store every few seconds for as long as the server runs."""
        self._limiter = anyio.CapacityLimiter(1)
        task = asyncio.create_task(self._look_again())
        yield
        task.cancel()

    async def _look_again(self) -> None:
        problem = ""
        while True:
            wait_s = EVERY_S
            try:
                wait_s, problem = await self._call(self._history.look), ""
            except Exception as e:  # the owner of a client may come again
                is_closed = self._core is not None and self._core.closed
                if repr(e) != problem and not is_closed:
                    log.warning("the page of %s cannot look at it: %r", self._store.path, e)
                problem = repr(e)
            await asyncio.sleep(wait_s)

    async def _call(self, call: Callable[[], Any], asked_by: Request | None = None) -> Any:
        """Make calls of the store, while the loop goes on, if who asks for them is still there."""
        async with self._limiter:
            if asked_by is not None and await asked_by.is_disconnected():
                raise ClientDisconnect
            return await anyio.to_thread.run_sync(call)

    # --- requests

    async def _look(self, name: str, request: Request) -> Response:
        view, fields = getattr(self._views, name), read_fields(request.scope["query_string"])
        shown: Response = await self._call(lambda: self._show(name, **view(fields)), request)
        return shown

    async def _change(self, name: str, request: Request) -> Response:
        change, form = getattr(self._views, name), await self._guard.read_change(request)
        return RedirectResponse(await self._call(lambda: change(form)), 303)

    def _answering(self, answer: Answer, *, to_all: bool = False) -> Answer:
        """Answer who may look, or anybody; tell errors."""

        async def answer_or_tell(request: Request) -> Response:
            try:
                may_look = to_all or self._guard.lets_in(request)
                if may_look:
                    return await answer(request)
                asked = f"{request.url.path}?{request.url.query}".rstrip("?")
                return self._show("login", 403, onward=asked if request.method == "GET" else "/")
            except (TimerStoreError, ClientDisconnect) as e:
                status = next((_STATUS[kind] for kind in _STATUS if isinstance(e, kind)), 409)
                return self._show("error", status, error=e)
            except Exception:
                log.exception("a request to the page of %s failed", self._store.path)
                told = "This is a fault of timerstore, not yours: the program's log has it."
                return self._show("error", 500, error=told)

        return answer_or_tell

    def _show(self, name: str, status: int = 200, **told: Any) -> Response:
        guard = self._guard
        told |= {"store": self._store.path.name, "writes": guard.writes, "csrf": guard.csrf}
        return Response(render(f"{name}.html", **told), status, media_type="text/html")


async def _style(request: Request) -> Response:
    return Response(render("style.css"), media_type="text/css")


def check_place(where: str, token: str | None, hosts: Collection[str]) -> None:
    """Raise InvalidArgumentError if no store can be shown so."""
    Guard(token, write=False, port=0, path=Path())
    with _listen(where) as listening:
        _names(listening, where, hosts, has_token=token is not None)


def _listen(where: str) -> socket.socket:
    host, _, port = where.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if not (port.isdecimal() and int(port) < 1 << 16):
            raise ValueError(f"there is no port {port!r}")
        return socket.create_server((host, int(port)), family=family, backlog=CONNECTIONS_MAX)
    except (ValueError, OSError) as e:
        raise InvalidArgumentError(
            f"The page's address is {where!r}: {e}. Pass [HOST:]PORT with a port that is free."
        ) from e


def _names(
    listening: socket.socket, where: str, hosts: Collection[str], *, has_token: bool
) -> list[str]:
    """Return by which names browsers may ask, the first one to be shown."""
    address = ipaddress.ip_address(listening.getsockname()[0].partition("%")[0])
    if not (has_token or (address.is_loopback and not hosts)):
        raise InvalidArgumentError(
            f"The page at {where} can be reached {f'as {hosts}' if hosts else 'from elsewhere'}. "
            "Pass a token (--token-file), or use 127.0.0.1 without other names."
        )
    names = [] if address.is_unspecified else [where.rpartition(":")[0] or str(address)]
    names += [*hosts, *(["localhost", "127.0.0.1", "[::1]"] if address.is_loopback else [])]
    wrong = [each for each in names if not _NAME.fullmatch(each)]
    if wrong or not names:
        raise InvalidArgumentError(
            f"The page at {where} is reached by {wrong or 'no name'}. Pass the names by which "
            "browsers reach it (--page-host), without a port: timers.example.org."
        )
    return names


_servers: weakref.WeakSet[PageServer] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_servers):
        server._socket.close()  # else the child keeps the port when the parent closes it
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)
