"""The other end of the door: finds a store's owner, asks, raises the errors that it raised."""

from __future__ import annotations

import errno
import http.client
import json
import os
from pathlib import Path
from typing import Any, Final

from timerstore.control.socketfile import connect
from timerstore.control.wire import SOCKET_NAME, error_from_json, from_json, to_json
from timerstore.errors import StoreAccessError, StoreClosedError
from timerstore.timelog.lockfile import holder

TIMEOUT_S: Final = 60.0
"""How long an answer may take: a fsync on a disk that is busy takes its time."""
_NOBODY: Final = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR, errno.ENOTSOCK, errno.ENXIO)


class Owner:
    """The process that has a store open; any number of threads may ask it.

    Each call is a connection of its own, so that whoever thinks between two of them keeps nobody
    out.
    """

    def __init__(self, path: Path) -> None:
        """Made by `find_owner`."""
        self.path = path
        self.timeout_s = TIMEOUT_S

    def call(self, name: str, **arguments: Any) -> Any:
        """Make a call in the owner's process; return its result as JSON says it.

        `delay_s` and `duration_s` are seconds. Raises what the call raised there; StoreClosedError
        where the owner ended meanwhile, of which it is not known whether it made the call.
        """
        connection = _Connection(self.path, self.timeout_s)
        content, headers = json.dumps(to_json(arguments)).encode(), {"Connection": "close"}
        try:
            connection.request("POST", f"/{name}", content, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except TimeoutError as e:
            raise StoreAccessError(
                f"{self.path} is open in another process{holder(self.path)}, which does not answer "
                f"within {self.timeout_s:g} s. Look whether it was stopped, or waits for a disk."
            ) from e
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise StoreClosedError(
                f"The process that had {self.path} open ended before it answered. Look whether it "
                "made the call, then try again."
            ) from e
        finally:
            connection.close()
        if response.status != 200:
            raise error_from_json(answer if isinstance(answer, dict) else {})
        return from_json(answer["result"])


class _Connection(http.client.HTTPConnection):
    """HTTP over the socket of a folder."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = connect(self._path, SOCKET_NAME, self.timeout)


def find_owner(path: str | os.PathLike[str]) -> Owner | None:
    """Return the process that has a store open; None where there is none that can be asked.

    Raises StoreAccessError where it belongs to another user.
    """
    connection = _Connection(Path(path), TIMEOUT_S)
    try:
        connection.connect()
    except OSError as e:
        if e.errno in _NOBODY:
            return None
        raise StoreAccessError(
            f"{path} is open in a process that cannot be asked ({e.strerror}). Be its user."
        ) from e
    finally:
        connection.close()
    return Owner(Path(path))
