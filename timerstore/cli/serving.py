"""The command `serve`."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from timerstore.cli.app import OPERATE, AsJson, ConfigFile, StorePath, answering, app
from timerstore.cli.open_store import open_to_change
from timerstore.cli.until_signal import told_to_end

_LOOK_S = 1.0


@app.command(rich_help_panel=OPERATE)
def serve(path: StorePath, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Open the store, or create it, and serve it to other processes of this user.

    They call timerstore.connect(PATH). SIGTERM or Ctrl-C ends it in order: calls under way are
    answered, then the store is closed. It tells systemd (Type=notify) when it is ready. Exit
    status: 0 it was told to end, 3 another process has the store open, 4 the disk failed.

    Example: timerstore serve timers/
    """
    with (
        answering(as_json=as_json) as out,
        told_to_end() as came,
        open_to_change(path, config, create=True) as store,
    ):
        from timerstore.serving.server import serve as let_others_use

        with let_others_use(store) as server:
            told = {"path": str(path), "state": "serving", "pid": os.getpid()}
            out.tell(told, f"{path}: serving, pid {os.getpid()}")
            out.flush()
            _tell_systemd("READY=1")
            while not came.wait(_LOOK_S) and store.core.failure.error is None:
                _tell_systemd(f"STATUS={server.client_count} clients")
            _tell_systemd("STOPPING=1")


def _tell_systemd(text: str) -> None:
    """Tell the supervisor, if there is one; nobody is told twice for want of an answer."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if name[:1] not in ("/", "@"):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + name[1:] if name[0] == "@" else name)
        sock.sendall(text.encode())
