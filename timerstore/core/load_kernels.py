"""Kernels at hand before a store is opened: loaded from their cache, or compiled.

When any has to be compiled, so are those that few programs call (an opening after a crash, a
table, a validation), which are loaded when they are first called. So nothing is compiled later.

They are compiled side by side, in processes that do nothing else and leave them in the cache, so
that the other threads of the program go on. If that cannot be (no folder to cache them in, one
processor, a program that is not started as plain Python) they are compiled here.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import pkgutil
import signal
import sys
import time
from importlib import import_module
from typing import Final

from timerstore import services, timelog, wheel
from timerstore.errors import TimerStoreError
from timerstore.jit.cachefolder import folder_to_write, has_failed
from timerstore.jit.guards import Lock, apart, is_ending
from timerstore.jit.host import processor_count
from timerstore.jit.kernel import LOADED_AHEAD, LOADED_LATER, Kernel
from timerstore.jit.loading import is_compiled, reach_bytes

log = logging.getLogger("timerstore")

_WORKERS_MAX: Final = 4
"""Processes that compile, some 400 MB each."""
_LOOK_S: Final = 0.01
_PROGRAM: Final = """
import json, sys
sys.path[:], names = json.loads(sys.argv[1]), json.loads(sys.argv[2])
import timerstore.core.load_kernels
timerstore.core.load_kernels.work(names)
"""
_WHAT: Final = "compiling the kernels, once for each version and machine"

_one_loads = Lock()
_ready_count = 0
_compiling = False


def load_kernels() -> None:
    """Have the machine code in memory of every kernel that calls on an open store run.

    O(1) once it is. A process's first store takes some tenths of a second; if they have to be
    compiled, with all others, it takes half a minute to a minute, which stderr is told on a
    terminal, and else the log. An exception, such as one of a signal handler, ends only the wait;
    the work goes on.
    """
    if _ready_count == len(LOADED_AHEAD):
        return
    progress = _Progress()
    try:
        apart(_load, progress.show)
    finally:
        progress.end()


def compile_all() -> None:
    """Have the machine code of all kernels in the cache, and load it as `load_kernels` does.

    Those of all modules that were imported, and of `timelog`, `wheel`, `services`.
    """
    load_kernels()
    progress = _Progress()
    try:
        apart(_compile_later, progress.show)
    finally:
        progress.end()


class _Progress:
    """What a person sees while kernels are compiled."""

    def __init__(self) -> None:
        self._began_s, self._shown = time.monotonic(), False

    def show(self) -> None:
        """Say that it goes on."""
        if not _compiling:
            return
        if sys.stderr is not None and sys.stderr.isatty():
            passed_s = time.monotonic() - self._began_s
            sys.stderr.write(f"\rtimerstore: {_WHAT}: {passed_s:.0f} s")
            sys.stderr.flush()
        elif not self._shown:
            log.warning(_WHAT)
        self._shown = True

    def end(self) -> None:
        """End the line."""
        if self._shown and sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write("\n")


def _load() -> None:
    global _ready_count
    with _one_loads.guard():
        count = len(LOADED_AHEAD)
        waiting = LOADED_AHEAD[_ready_count:count]
        missing = [each for each in waiting if not is_compiled(each)]
        later = _missing_later() if missing else []
        _compile([*missing, *later], load=[*waiting, *later])
        _ready_count = count


def _compile_later() -> None:
    with _one_loads.guard():
        later = _missing_later()
        _compile(later, load=later)


def _missing_later() -> list[Kernel]:
    """Return those that are loaded later, and are not in the cache; none if there is none."""
    for package in (timelog, wheel, services):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            import_module(module.name)
    missing = [each for each in LOADED_LATER if not is_compiled(each)]
    return missing if missing and folder_to_write() else []


def _compile(missing: list[Kernel], load: list[Kernel]) -> None:
    global _compiling
    _compiling = bool(missing)
    try:
        if missing and _may_start_workers(missing):
            _compile_side_by_side(missing)
        for each in load:
            if is_ending():  # after an exception that ended the wait, a Ctrl-C say
                raise TimerStoreError("The program ended while kernels were being loaded.")
            each.load()
    finally:
        _compiling = False


# --- in other processes


def _may_start_workers(missing: list[Kernel]) -> bool:
    plain = os.path.basename(sys.executable or "").startswith("python")
    return (
        plain
        and not getattr(sys, "frozen", False)
        and _worker_count(missing) > 1
        and folder_to_write() is not None
    )


def _worker_count(missing: list[Kernel]) -> int:
    return min(_WORKERS_MAX, processor_count(), len(missing))


def _compile_side_by_side(missing: list[Kernel]) -> None:
    """Have workers fill the cache, the longest first. What they fail at is left to this process."""
    import subprocess  # few programs compile, and it takes a while

    missing = sorted(missing, key=lambda each: -reach_bytes(each.py_func))
    names = [each.name for each in missing]
    command = [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), json.dumps(names)]
    workers = []
    # One pipe for all: each takes the number of the next kernel from it when it is done with one.
    numbers, end = os.pipe()
    try:
        with open(end, "wb") as queue:
            queue.write(bytes(range(len(missing))))
        for _ in range(_worker_count(missing)):
            worker = subprocess.Popen(
                command,
                stdin=numbers,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            workers.append(worker)
    except OSError as e:
        log.debug("no process to compile kernels could be started: %s", e)
    finally:
        os.close(numbers)
    # A program that ends meanwhile does not wait for them; they serve the next one.
    while not is_ending() and any(each.poll() is None for each in workers):
        time.sleep(_LOOK_S)


def work(names: list[str]) -> None:
    """Compile what another process asks for; its numbers come one by one on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: it is meant for that process
    gc.disable()  # nearly all that is made is kept, so it is looked through in vain
    for module in {name.rpartition(".")[0] for name in names}:
        import_module(module)
    kernels = {each.name: each for each in [*LOADED_AHEAD, *LOADED_LATER]}
    while number := os.read(0, 1):
        name = names[number[0]]
        if name in kernels:
            kernels[name].load()
        if has_failed():
            return
