"""Who may look at the page, and who may change the store through it.

A browser sends what any site tells it to send, so each of these must hold:

    Host     names this page: a name of somebody else's that leads here (DNS rebinding) is refused
    cookie   of a session, which begins with the token, if there is one; SameSite=Lax
    site     of who asks, as browsers tell it: another one may lead here, and make no other request
    Origin   of a form: a page of the same origin has sent it
    csrf     a field of a form: a secret of this server, which only its pages show
    --write  without it no form changes anything

A session is another secret, not the token: servers on other ports of the host get the cookie too.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import time
from collections import deque
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from timerstore.errors import InvalidArgumentError, TimerStoreError

FORM_BYTES_MAX: Final = 1 << 16
FIELDS_MAX: Final = 1_000
TOKEN_LENGTH_MIN: Final = 16
"""So long a token cannot be guessed."""
SESSION_S: Final = 12 * 3_600
SESSIONS_MAX: Final = 100
"""Then whoever came first shows the token again."""
_WRONG_S: Final = 1.0
_OF_THIS_PAGE: Final = re.compile(r"/[a-z]*(\?[!-~]*)?")
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "connection": "close",  # a connection lives short: see `server.py`
    "referrer-policy": "same-origin",  # with "no-referrer" a browser tells no Origin of a form
    "x-content-type-options": "nosniff",
}
Fields = Mapping[str, list[str]]


class RefusedError(TimerStoreError):
    """Raised for a request that must not do what it asks for."""


class Guard:
    """The secrets of one server."""

    def __init__(self, token: str | None, *, write: bool, port: int, path: Path) -> None:
        """`token`: what a browser must show once; None: nobody needs one."""
        if token is not None and (len(token) < TOKEN_LENGTH_MIN or not token.isascii()):
            raise InvalidArgumentError(
                f"The token must have {TOKEN_LENGTH_MIN} or more characters of ASCII. Make one: "
                'python3 -c "import secrets; print(secrets.token_urlsafe())"'
            )
        self._token, self.writes = token, write
        self._cookie = f"timerstore_{port}_{sha256(bytes(path.absolute())).hexdigest()[:8]}"
        self._sessions: deque[tuple[str, float]] = deque(maxlen=SESSIONS_MAX)  # until when
        self.csrf = secrets.token_urlsafe()

    def lets_in(self, request: Request) -> bool:
        """Tell whether the request is of a session, or nobody needs one.

        Raises RefusedError if a page of another site asks, and not somebody who follows its link.
        """
        site, what_for = (request.headers.get(f"sec-fetch-{name}") for name in ("site", "dest"))
        if site in ("cross-site", "same-site") and what_for != "document":
            raise RefusedError("A page of another site asks for this one.")
        cookie = request.cookies.get(self._cookie, "")
        live = (each for each, until_s in self._sessions if time.monotonic() < until_s)
        return self._token is None or any(_is_same(cookie, each) for each in live)

    async def log_in(self, request: Request) -> Response:
        """Begin a session; raises RefusedError if the token is wrong."""
        form = await _read_form(request)
        given, onward = (form.get(name, [""])[0].strip() for name in ("token", "onward"))
        if self._token is not None and not _is_same(given, self._token):
            await asyncio.sleep(_WRONG_S)
            raise RefusedError("This token is wrong.")
        answer = RedirectResponse(onward if _OF_THIS_PAGE.fullmatch(onward) else "/", 303)
        session = secrets.token_urlsafe()
        self._sessions.append((session, time.monotonic() + SESSION_S))
        answer.set_cookie(self._cookie, session, SESSION_S, httponly=True, samesite="lax")
        return answer

    async def read_change(self, request: Request) -> Fields:
        """Return the fields of a form that may change the store. Raises RefusedError."""
        form = await _read_form(request)
        if not _is_same(form.get("csrf", [""])[0], self.csrf):
            raise RefusedError("The form is of another life of this page. Load the page again.")
        if not self.writes:
            raise RefusedError("This page only shows. Start it with --write to change anything.")
        return form


def _is_same(given: str, secret: str) -> bool:
    """Compare in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())


async def _read_form(request: Request) -> Fields:
    """Return the fields of a form that this page has sent, of a bounded size."""
    origin = request.headers.get("origin", "").partition("://")[2]
    if not origin or origin.lower() != request.headers.get("host", "").lower():
        raise RefusedError("The form was not sent by this page (Origin).")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            raise RefusedError(f"The form has more than {FORM_BYTES_MAX:,} bytes.")
    return read_fields(body)


def read_fields(text: bytes) -> Fields:
    """Return the fields of a form, or of an address. Raises InvalidArgumentError."""
    try:
        return parse_qs(text.decode("ascii"), errors="surrogateescape", max_num_fields=FIELDS_MAX)
    except ValueError as e:
        raise InvalidArgumentError(f"The fields cannot be read: {e}.") from e
