"""A program that is ended again and again, in processes of its own.

One process imports the program and loads the kernels, once. It forks a child for each life, and the
child runs the program. A line to that process asks for a life, lines from it tell what happened in
it. What was told is known, whatever ends the child.

A child tells what calls of its stores return, and counts the steps of their disks.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from timerstore.errors import InvalidArgumentError, TooLateError
from timerstore.services.world.clock import ManualClock
from timerstore.store.store import TimerStore
from timerstore.testing.disk import PowerDisk
from timerstore.testing.ledger import Account, Ledger, judge
from timerstore.timelog.files.disk import Disk
from timerstore.values.config import Config
from timerstore.values.kinds import check_place
from timerstore.values.no_pickle import Closes

_SERVE: Final = "from timerstore.testing.kills import serve; serve()"
_OURS: Final = "\t"
"""What lines begin with that the program has not said."""
_IDS_AT_ONCE: Final = 100
"""So many fit into what a pipe takes in one piece."""

Function = Callable[..., object]


class Life(NamedTuple):
    """One life of a program."""

    crashed: bool
    """False: it ended by itself before."""
    step_count: int
    """How many steps the disks of its stores took; 0 if it was killed by time."""
    said: list[str]
    """What it said by `say`, line by line."""


class Program(Closes):
    """A program that is ended at a step, or at a moment: a function of a module, or a script.

    A function is called with a path and what else is passed, as texts; a script finds them in
    `sys.argv`. Each life is a process of its own, forked from one that has imported the program and
    called `prepare`, with variables of `environment`. A step is what the disk of a store does: it
    makes, allocates, syncs, renames or removes a file. So at a step it shows what is durable.

    What put, put_many, cancel, cancel_many, cancel_key, reschedule, pull and consume return is
    noted by itself. A life that takes longer than `timeout_s` raises TimeoutError; one that fails
    raises RuntimeError, and its trace is on stderr. Use it in a `with` statement, or close it.
    """

    def __init__(
        self,
        program: Function | str | os.PathLike[str],
        *,
        prepare: Function | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> None:
        self.accounts: dict[str, Account] = {}
        """What it was told of its calls, by the path that it was given."""
        self.timeout_s = timeout_s
        self._power_cut: set[str] = set()
        self._place = _place(program) if callable(program) else [os.path.abspath(program)]
        first = None if prepare is None else _place(prepare)
        asks, self._asking = os.pipe()
        self._telling, tells = os.pipe()
        told = json.dumps([sys.path, self._place, first, asks, tells])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, told],
            pass_fds=(asks, tells),
            env={**os.environ, **(environment or {})},
        )
        os.close(asks)
        os.close(tells)
        self._read = b""
        self._lines = list[str]()
        if self._line(time.monotonic() + 10 * timeout_s) != f"{_OURS}ready":
            raise RuntimeError(f"{self._place[-1]} did not begin. Its trace is on stderr.")

    def run(self, path: str | os.PathLike[str], *arguments: object) -> Life:
        """Let it live until it ends by itself."""
        return self._live(os.fspath(path), arguments)

    def kill(
        self,
        path: str | os.PathLike[str],
        *arguments: object,
        step: int | None = None,
        after_s: float | None = None,
    ) -> Life:
        """Let it live, and kill it with SIGKILL before a step, counted from 0, or after a time."""
        if (step is None) == (after_s is None):
            raise InvalidArgumentError("Pass either a step or after_s.")
        return self._live(os.fspath(path), arguments, step, after_s)

    def cut_power(
        self, path: str | os.PathLike[str], *arguments: object, step: int, seed: int = 0
    ) -> Life:
        """Let it live, and cut the power before a step; its stores hold what would be left then.

        They are on a `PowerDisk`, which the power cut takes the bytes from: what was there before
        that life counts as durable, and files of others keep what they hold. `seed`: which of the
        sectors that are not durable are left.
        """
        life = self._live(os.fspath(path), arguments, step, seed=seed)
        if life.crashed:
            self._power_cut.add(os.fspath(path))
        return life

    def check(self, path: str | os.PathLike[str], *, config: Config | None = None) -> Ledger:
        """Open the store at a path, and compare it with what the program was told; see `judge`."""
        path = os.fspath(path)
        power = path in self._power_cut
        self._power_cut.discard(path)
        return judge(path, self.accounts.get(path), config=config, power=power)

    def end(self, pid: int) -> None:
        """End a child whose time has come."""
        with suppress(ProcessLookupError):  # it has ended by itself meanwhile
            os.kill(pid, signal.SIGKILL)

    def _live(
        self,
        path: str,
        arguments: Sequence[object],
        step: int | None = None,
        after_s: float | None = None,
        seed: int | None = None,
    ) -> Life:
        asked = json.dumps([step, seed, [path, *map(str, arguments)]])
        os.write(self._asking, asked.encode() + b"\n")
        limit_s = time.monotonic() + self.timeout_s + (after_s or 0)
        noted, said, pid, ended, step_count, end_s = list[str](), list[str](), 0, "", 0, limit_s
        is_meant, is_left = False, seed is None  # the end; what a power cut leaves
        try:
            while not ended or (ended != "0" and not is_left):
                line = self._line(end_s)
                if line is None and end_s == limit_s:
                    raise TimeoutError(f"{self._place[-1]} did not end in {self.timeout_s} s.")
                if line is None:
                    self.end(pid)
                    end_s, is_meant = limit_s, True
                elif not line.startswith(_OURS):
                    said.append(line)
                else:
                    word, *words = line.split()
                    if word == "child":
                        pid = int(words[0])
                        end_s = limit_s if after_s is None else time.monotonic() + after_s
                    elif word in ("steps", "crash"):
                        step_count, is_meant = int(words[0]), is_meant or word == "crash"
                    elif word == "ended":
                        ended = words[0]
                        is_left = is_left or not is_meant
                    elif word == "cut":
                        is_left = True
                    elif word == "failed":
                        raise RuntimeError(f"{path} could not be cut. The trace is on stderr.")
                    else:
                        noted.append(line)
        except BaseException:
            if pid and not ended:
                Program.end(self, pid)
            self.close()
            raise
        self.accounts.setdefault(path, Account()).take(
            noted, power=seed is not None and ended != "0"
        )
        if ended != "0" and not (ended == f"{-signal.SIGKILL}" and is_meant):
            raise RuntimeError(f"{self._place[-1]} ended with status {ended}; see stderr.")
        return Life(ended != "0", step_count, said)

    def _line(self, until_s: float) -> str | None:
        """Return the next line that is told; None if there is none until then."""
        while not self._lines or time.monotonic() > until_s:
            wait_s = until_s - time.monotonic()
            if wait_s < 0 or not select.select([self._telling], [], [], wait_s)[0]:
                return None
            data = os.read(self._telling, 1 << 16)
            if not data:
                raise RuntimeError(f"{self._place[-1]} cannot be run. Its trace is on stderr.")
            *lines, self._read = (self._read + data).split(b"\n")
            self._lines = [line.decode(errors="replace") for line in lines]
        return self._lines.pop(0)

    def close(self) -> None:
        """End the process that forks."""
        if not self._process.poll():
            self._process.kill()
        self._process.wait()
        if self._telling >= 0:
            os.close(self._telling)
            os.close(self._asking)
            self._telling = -1


def _place(function: Function) -> list[str]:
    """Return where a function is found: a file, a module's name, its own name."""
    name, module = getattr(function, "__qualname__", "<"), getattr(function, "__module__", "")
    if "<" in name or module not in sys.modules:
        raise InvalidArgumentError(
            f"{function!r} is no function of a module. Pass one, or a script."
        )
    return [os.path.abspath(sys.modules[module].__file__ or ""), module, name]


# --- in the process that forks, and in its children

_tells = -1
_is_over = False
"""Whether the power is gone: what would be told from then on was not."""


def say(*words: object) -> None:
    """Tell whoever crashes this program a line; it is in `Life.said`. Else nothing happens."""
    if _tells >= 0:
        _write(" ".join(map(str, words)))


def _tell(*words: object) -> None:
    _write(_OURS + " ".join(map(str, words)))


def _write(line: str) -> None:
    while _is_over:
        time.sleep(3_600)
    os.write(_tells, f"{line}\n".encode())


def _load(place: list[str]) -> Function:
    """Return the program: a function, or what runs a script."""
    file, *names = place
    if not names:
        sys.path.insert(0, os.path.dirname(file))
        return partial(_run_script, file)
    module, name = names
    sys.path.append(str(Path(file).parents[module.count(".")]))
    if module == "__main__":
        found: Any = runpy.run_path(file, run_name="__crashed__")[name]
    else:
        found = importlib.import_module(module)
        for each in name.split("."):
            found = getattr(found, each)
    return found  # type: ignore[no-any-return]


def _run_script(file: str, *arguments: str) -> None:
    sys.argv = [file, *arguments]
    runpy.run_path(file, run_name="__main__")


def load_kernels() -> None:
    """Load what a store needs, by using one."""
    clock, config = ManualClock(), Config(durability="process", delay_levels="1s")
    with (
        tempfile.TemporaryDirectory() as folder,
        TimerStore(folder, config=config, clock=clock) as store,
    ):
        for id in store.put_many([b"first"] * 3, delay_ms=[0, 50, 5_000]):
            store.cancel(id)
        store.reschedule(store.put(b"x", at_ms=clock.now_ms + 9_000), at_ms=10**13)
        store.cancel_many(store.put_many([b"first"] * 2, delay_level=1)[1:])
        clock.advance(2)
        store.pull("default", timeout=0).ack()


def _fork() -> int:
    with warnings.catch_warnings():  # of other threads, which the child does without
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def serve() -> None:
    """Fork a child for each line that is asked, and tell of it."""
    global _tells
    paths, place, first, asks, _tells = json.loads(sys.argv[1])
    sys.path[:] = paths
    program = _load(place)
    (load_kernels if first is None else _load(first))()
    _tell("ready")
    with os.fdopen(asks) as lines:
        for line in lines:
            step, seed, arguments = json.loads(line)
            pid = _fork()
            if pid == 0:
                _be_child(program, step, seed, arguments)
            _tell("child", pid)
            _, status = os.waitpid(pid, 0)
            _tell("ended", os.waitstatus_to_exitcode(status))


def _be_child(
    program: Function, step: int | None, seed: int | None, arguments: list[str]
) -> NoReturn:
    """Run the program, once; end as it does."""
    steps, code = _Steps(step, seed), 1
    open_store: Any = TimerStore.__init__

    def open_noted(store: TimerStore, path: Path, **options: Any) -> None:
        options["disk"] = options.get("disk") or steps.make_disk(check_place(path))
        open_store(store, path, **options)
        _note_calls(store)

    TimerStore.__init__ = open_noted  # type: ignore[method-assign, assignment]
    try:
        program(*arguments)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    _tell("steps", next(steps.numbers))
    os._exit(code)


class _Steps:
    """The steps of all disks of a child, which ends before one of them."""

    def __init__(self, step: int | None, seed: int | None) -> None:
        self.last, self.seed, self.numbers = step, seed, itertools.count()
        self.disks: list[_SteppingPowerDisk] = []

    def make_disk(self, path: Path) -> Disk:
        if self.seed is None:
            return _SteppingDisk(self)
        disk = _SteppingPowerDisk(path, rnd=random.Random(self.seed))
        disk.steps = self
        self.disks.append(disk)
        return disk

    def take(self) -> None:
        """Take the next step, or end."""
        global _is_over
        while _is_over:
            time.sleep(3_600)
        if next(self.numbers) != self.last:
            return
        _tell("crash", self.last)
        pid, _is_over = os.getpid(), True
        # Until this process is killed no other thread of it runs Python: the child, who cuts,
        # would not know what it did.
        sys.setswitchinterval(1_000)
        if not self.disks or _fork() != 0:
            os.kill(pid, signal.SIGKILL)
        _is_over = False
        while os.getppid() == pid:
            time.sleep(0.001)
        self._cut()

    def _cut(self) -> NoReturn:
        try:
            for disk in self.disks:
                left = disk.root.with_name(disk.root.name + ".cut")
                disk.cut(left)
                shutil.rmtree(disk.root, ignore_errors=True)
                left.rename(disk.root)
            _tell("cut")
        except BaseException:
            traceback.print_exc()
            _tell("failed")
        os._exit(0)


class _SteppingDisk(Disk):
    def __init__(self, steps: _Steps) -> None:
        super().__init__()
        self.steps = steps

    def event(self, kind: str, path: Path) -> None:
        self.steps.take()


class _SteppingPowerDisk(PowerDisk):
    steps: _Steps

    def event(self, kind: str, path: Path) -> None:
        self.steps.take()
        super().event(kind, path)


# --- what calls return


def _note_calls(store: TimerStore) -> None:
    """Have a store's calls tell what they return."""
    _note("durability", [store.core.engine.config.durability])
    for each in (put, put_many, cancel, cancel_many, cancel_key, reschedule, pull, consume):
        setattr(store.calls, each.__name__, partial(each, getattr(store.calls, each.__name__)))


_call_numbers = itertools.count()


def _note(word: str, names: Sequence[str]) -> None:
    """Tell in lines: a word, the thread, the number of the call, then ids or names."""
    call = next(_call_numbers)
    for at in range(0, len(names), _IDS_AT_ONCE):
        _tell(word, threading.get_ident(), call, *names[at : at + _IDS_AT_ONCE])


def put(call: Function, given: tuple[Any, ...]) -> Any:
    """Note an id."""
    id = call(given)
    _note("put", [str(id)])
    return id


def put_many(call: Function, *given: Any) -> Any:
    """Note all ids."""
    ids: Any = call(*given)
    _note("put", list(ids))
    return ids


def cancel(call: Function, id: str) -> Any:
    """Note who is asked for, and the answer."""
    _note("cancelling", [id])
    done = call(id)
    _note("cancelled" if done else "late", [id])
    return done


def cancel_many(call: Function, ids: Sequence[str]) -> Any:
    """Note who is asked for, and the answers."""
    _note("cancelling", list(ids))
    done: Any = call(ids)
    _note("cancelled", [id for id, each in zip(ids, done, strict=True) if each])
    _note("late", [id for id, each in zip(ids, done, strict=True) if not each])
    return done


def cancel_key(call: Function, topic: str, key: str) -> Any:
    """Note the key."""
    _note("key", [topic, key.encode().hex()])
    return call(topic, key)


def reschedule(call: Function, id: str, *given: Any) -> Any:
    """Note both ids."""
    _note("cancelling", [id])
    try:
        new = call(id, *given)
    except TooLateError:
        _note("late", [id])
        raise
    _note("moved", [id, str(new)])
    return new


def pull(call: Function, *given: Any) -> Any:
    """Note what is handed out."""
    batch: Any = call(*given)
    _note("got", batch.ids.to_pylist())
    return batch


def consume(call: Function, *given: Any) -> Iterator[Any]:
    """Note what is handed out."""
    deliveries: Any = call(*given)
    for delivery in deliveries:
        _note("got", [delivery.id])
        yield delivery
