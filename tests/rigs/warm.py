"""Python programs that begin at once: forks of a process that has imported and loaded what is slow.

A new process needs 0.6 s of a processor until it has a store. `Warm` is a `Popen` for those of
which that shows nothing. Their process is real: a child of this one, with files, signals and an end
of its own. Where all is proved, or the environment says what is read on import, it is a new one.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

_AT_FIRST = dict(os.environ)
_HARMLESS = ("DJANGO_SETTINGS_MODULE", "NOTIFY_SOCKET", "PYTEST_", "PYTHONPATH", "SHOP")
"""How names in the environment begin that a program may have otherwise."""
_SUBREAPER = 36  # of prctl: a process whose parent ends becomes a child of this one
_one_at_a_time = threading.Lock()


class Warm(subprocess.Popen[Any]):
    """`Warm([sys.executable, "-P", …])`: behind it `-W error`, then `-c`, `-m` or a file."""

    def _execute_child(self, *given: Any) -> None:
        begin = super()._execute_child  # type: ignore[misc]
        asked = inspect.signature(begin).bind(*given).arguments
        if not _is_plain(asked):
            begin(*given)
            return
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        place, own_session = os.fspath(asked["cwd"] or os.getcwd()), asked["start_new_session"]
        request = [list(map(str, asked["args"][2:])), environment, place, own_session]
        files = enumerate(asked[name] for name in ("p2cread", "c2pwrite", "errwrite"))
        with _one_at_a_time:
            (door, _), libc = _door(), ctypes.CDLL(None)
            libc.prctl(_SUBREAPER, 1)
            try:
                ours = [number if file == -1 else file for number, file in files]
                socket.send_fds(door, [json.dumps(request).encode()], ours)
                self.pid = int(door.recv(99))
                assert door.recv(99) == b"it is yours"
            finally:
                libc.prctl(_SUBREAPER, 0)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


def _is_plain(asked: dict[str, Any]) -> bool:
    """Tell whether a fork can do all that a process is begun with."""
    from tests.tiers import PROVING

    now = os.environ if asked["env"] is None else asked["env"]
    other = {name for name, _ in now.items() ^ _AT_FIRST.items()}
    odd = ("preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
    is_like_others = all(name.startswith(_HARMLESS) for name in other)
    is_python = [*map(str, asked["args"][:2])] == [sys.executable, "-P"]
    is_odd = any(asked[name] for name in odd if asked[name] != -1)
    written = [asked[name] for name in ("c2pwrite", "errwrite") if asked[name] != -1]
    devices = {os.fstat(each).st_rdev for each in written}  # 0 for what is none
    is_odd |= not devices <= {0, os.stat(os.devnull).st_rdev}
    return is_python and is_like_others and not is_odd and not PROVING and _can_adopt()


@cache
def _can_adopt() -> bool:
    """Tell whether a process whose parent ends can become a child of this one: qemu refuses it."""
    return sys.platform == "linux" and ctypes.CDLL(None).prctl(_SUBREAPER, 0) == 0


@cache
def _door() -> tuple[socket.socket, object]:
    ours, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen([sys.executable, "-P", __file__], stdin=its, env=_AT_FIRST)
    assert ours.recv(99) == b"it is warm"
    return ours, process


def _serve(door: socket.socket) -> list[str]:
    """Fork for each program that is asked for; return there, with its arguments."""
    while True:
        request, files, *_ = socket.recv_fds(door, 1 << 20, 3)
        if not request:
            sys.exit()
        if not (between := os.fork()):
            if its := os.fork():
                door.send(b"%d" % its)
                os._exit(0)
            break
        for each in files:
            os.close(each)
        os.waitpid(between, 0)
        door.send(b"it is yours")
    door.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        file = open(number, mode, errors=getattr(sys, name).errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    arguments, environment, place, own_session = json.loads(request)
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [each for each in environment.get("PYTHONPATH", "").split(":") if each]
    if own_session:
        os.setsid()
    if arguments[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        del arguments[:2]
    return arguments


def _load() -> None:
    """Load what is slow."""
    import timerstore.cli.commands

    with tempfile.TemporaryDirectory() as folder, timerstore.open(f"{folder}/store") as store:
        store.put(b"x", delay=timedelta(0))
        for delivery in store.consume("default", timeout=9):
            delivery.ack()
            break
        assert store.cancel(store.put(b"x", delay=timedelta(hours=1)))
    try:
        import django.core.management.commands.migrate
        import django.core.management.commands.runserver
        import django.db.backends.sqlite3.base  # noqa: F401
    except ModuleNotFoundError:
        pass
    gc.collect()
    gc.freeze()


def main() -> None:
    """Play the program of a fork."""
    _load()
    with socket.socket(fileno=os.dup(0)) as door:
        door.send(b"it is warm")
        what, *sys.argv = _serve(door)
    own = sys.modules["__main__"] = types.ModuleType("__main__")
    if what == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        code, sys.argv[0] = sys.argv[0], what
        exec(compile(code, "<string>", "exec"), vars(own))
    else:
        sys.argv.insert(0, what)
        vars(own)["__file__"] = what
        exec(compile(Path(what).read_bytes(), what, "exec"), vars(own))


if __name__ == "__main__":
    main()
