"""A scheduler for interpreted kernels: real threads, of which one at a time has the baton.

`NUMBA_DISABLE_JIT=1` makes kernels plain Python. Here each of their boundaries, before and after
each lock, each atomic load, each publication, and behind each look at the clock, is a place where
the thread may have to hand the baton on; so is each event of the disk. A plan says where, and to
whom. A lock that is taken, a
sleep, a token that somebody else has: there another thread goes on. The clock stands still but for
`now_ms`, which moves by itself only when all sleep. Nothing of the product is changed: `attached`
puts other functions in the place of its atomics, locks, clock, sleeps, and threads, and makes its
queues and batches tiny.
"""

import _thread
import contextlib
import os
import select
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from timerstore.jit import guards, intrinsics, locks, record, system

ATOMICS = ("load_acquire", "store_release", "fetch_add", "exchange", "compare_exchange")
ATOMICS += ("observe", "publish", "exchange_word", "add_to_word")
TINY = {
    "RING_COUNT": 4,
    "HAND_OVER_COUNT": 2,
    "WAKE_COUNT": 2,
    "BATCH_COUNT": 3,
    "LOCKED_COUNT": 2,
    "CLAIM_UNITS": 2,
    "TAKE_COUNT": 3,
    "PASS_SLOTS": 3,
    "_PIECE": 1,
}
"""Constants of `services/` that say how much: each is made as small as it can be."""
CALLS = ("by_id", "group_commit", "waking")
"""Modules of `services/` whose atomics are no boundaries: what callers do besides their locks.

All orders of a group commit's steps are played in `tests/models/commit_model.py`.
"""
STEPS_MAX = 400_000


class StuckError(Exception):
    """Nobody can go on."""


class KilledError(BaseException):
    """Ends a thread of a process that was killed."""


class Task:
    """A thread that goes on while it has the baton."""

    def __init__(self, baton: "Baton", name: str, body: Callable[[], object]) -> None:
        self.baton, self.name, self.body = baton, name, body
        self.go = _thread.allocate_lock()
        self.go.acquire()
        self.ready: Callable[[], bool] | None = None
        self.until_ms: int | None = None  # when a sleep ends
        self.called = self.rests = self.spins = self.ended = self.killed = self.unwinding = False
        self.pauses = self.stands_by = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self.killed:
                self.body()
        except KilledError:
            pass
        except BaseException as e:
            self.error = e
        self.ended = True
        self.baton.running = None
        self.baton.back.release()

    def is_ready(self) -> bool:
        return not self.ended and (self.ready is None or self.ready())

    def goes_on(self) -> bool:
        """Whether a thread that pauses waits for this one."""
        return not self.pauses and not self.spins and self.is_ready()


class Baton:
    """Whose turn it is. `turns`: how many boundaries to go before the next turn, and to whom.

    Where the plan of turns has come to its end, each thread goes on until it has to wait. `cuts`:
    at which boundary of all the thread of that name goes on before all others, until it waits or a
    later one comes.
    """

    def __init__(
        self,
        now_ms: int,
        turns: Sequence[tuple[int, int]] = (),
        cuts: Sequence[tuple[int, str]] = (),
    ) -> None:
        self.now_ms = self.latest_ms = now_ms
        self.turns, self.cuts = list(reversed(turns)), list(reversed(cuts))
        self.tasks: list[Task] = []
        self.running: Task | None = None
        self.last: Task | None = None
        self.back = _thread.allocate_lock()
        self.back.acquire()
        self.held: dict[int, Task | None] = {}
        self.count = self.given = self.left = 0
        self.fell_ms = 0  # the furthest that the clock went back
        self.steady_ms = now_ms  # by this one naps end: it never goes back
        self.cut_at = -1  # the boundary of the last cut
        self.stop_at = STEPS_MAX
        self.on_quiet: Callable[[], None] = lambda: None

    def move_clock(self, by_ms: int) -> None:
        """Move the clock; it may go back."""
        self.now_ms += by_ms
        self.steady_ms += max(0, by_ms)
        self.latest_ms = max(self.latest_ms, self.now_ms)
        self.fell_ms = max(self.fell_ms, self.latest_ms - self.now_ms)

    # --- for the threads

    def spawn(self, name: str, body: Callable[[], object]) -> Task:
        """Add a thread; it begins when it is given the baton."""
        self.tasks.append(Task(self, name, body))
        return self.tasks[-1]

    def boundary(self) -> None:
        """Hand the baton on where the plan says so."""
        task = self.running
        if task is None or task.unwinding:
            return
        self.count += 1
        self.left -= 1
        is_cut = bool(self.cuts) and self.count >= self.cuts[-1][0] > self.cut_at
        if self.left <= 0 or is_cut:
            task.ready = None
            self._park(task)

    def wait(self, ready: Callable[[], bool], until_ms: int | None = None) -> None:
        """Hand the baton on, and go on once `ready`."""
        task = self.running
        if task is None:
            if not ready():
                raise StuckError("what nobody else can give is waited for")
            return
        if not task.unwinding:
            self.count += 1
            task.ready, task.until_ms = ready, until_ms
            self._park(task)

    def rest(self, for_ms: int, *, stands_by: bool = False) -> None:
        """Let all others go on, until a cut comes; or, where it stands by, until one pauses."""
        task, until_ms = self.running, self.steady_ms + for_ms
        assert task is not None
        if task.called:
            task.called = False
            return
        task.rests, task.stands_by = True, stands_by
        self.wait(lambda: not task.rests or self.steady_ms >= until_ms, until_ms)

    def pass_on(self) -> None:
        """Let somebody else go on, as who spins does."""
        task = self.running
        if task is not None and not task.unwinding:
            self.count += 1
            task.spins = True
            self._park(task)

    def _park(self, task: Task) -> None:
        self.running = None
        self.back.release()
        task.go.acquire()
        if task.killed:
            task.unwinding = True
            raise KilledError

    # --- for who plays

    def play(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Play until it is over, or nobody can go on; or up to the boundary `stop_at`."""
        while not is_over() and self.count < self.stop_at and 10 * self.given < STEPS_MAX:
            self.tasks = [task for task in self.tasks if not task.ended]
            if self.cuts and self.count >= self.cuts[-1][0]:
                self.cut_at, name = self.cuts.pop()
                named = [task for task in self.tasks if task.name == name]
                # One that sleeps wakes: its time may always have come.
                if named and (named[0].until_ms is not None or named[0].is_ready()):
                    named[0].called, named[0].rests = not named[0].rests, False
                    self.left, self.cutting = STEPS_MAX, True
                    self._give(named[0])
                    self.cut_at = -1  # the boundary of the last cut
                    continue
            ready = [task for task in self.tasks if task.is_ready()]
            if not ready:
                return
            ready = [task for task in ready if not task.spins] or ready
            gap, who = self.turns.pop() if self.turns else (STEPS_MAX, -1)
            task = ready[who % len(ready)] if who >= 0 else self._next(ready)
            self.left = min(gap, self.stop_at - self.count)
            self._give(task)
        if max(self.count, 10 * self.given) >= STEPS_MAX:
            raise StuckError("it goes on for ever")

    def _next(self, ready: list[Task]) -> Task:
        """Return who had the baton last, or who comes behind it."""
        if self.last in ready and (self.last is not None and self.last.ready is None):
            return self.last
        places = {id(task): i for i, task in enumerate(self.tasks)}
        place = places.get(id(self.last), -1)
        return min(ready, key=lambda task: (places[id(task)] <= place, places[id(task)]))

    def _give(self, task: Task) -> None:
        task.ready = task.until_ms = None
        task.spins = False
        self.given += 1
        self.running = self.last = task
        task.go.release()
        self.back.acquire()
        if task.error is not None:
            raise task.error

    def play_on(self, is_over: Callable[[], bool]) -> None:
        """Play until it is over; the clock moves whenever all sleep."""
        while not is_over() and self.count < self.stop_at:
            self.play(is_over)
            if is_over() or self.count >= self.stop_at:
                return
            self.on_quiet()
            ends = [task.until_ms for task in self.tasks if task.until_ms is not None]
            if not ends:
                raise StuckError(f"{[task.name for task in self.tasks]} wait for each other")
            self.move_clock(max(0, min(ends) - self.steady_ms))

    def kill(self) -> None:
        """End all threads where they are."""
        for task in self.tasks:
            if not task.ended:
                task.killed = True
                self.running = task
                task.go.release()
                self.back.acquire()
            task.thread.join()
        self.tasks, self.running = [], None
        self.held.clear()


def pause(*, wakes: bool = False) -> None:
    """Let all others go on as far as they can, who stands by among them; for a wrong kernel.

    Who sleeps may wake: its time may always have come.
    """
    baton = _attached[-1]
    me = baton.running
    if me is None:
        return
    for task in baton.tasks:
        task.rests &= not task.stands_by
        if wakes and task.until_ms is not None and not task.rests:
            task.ready = None
    me.pauses = True
    baton.wait(lambda: not any(each.goes_on() for each in baton.tasks))
    me.pauses = False


_attached: list[Baton] = []


# --- what stands in for the product's own


class BatonLock:
    """A `threading.Lock`, or an `RLock`, whose waiter hands the baton on."""

    def __init__(self, baton: Baton, *, again: bool) -> None:
        self.baton, self.again = baton, again
        self.owner: object = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self.baton.running or self.baton
        if self.owner is not None and not (self.again and self.owner is me):
            if not blocking:
                return False
            self.baton.wait(lambda: self.owner is None)
        self.owner = me
        self.depth += 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if self.depth <= 0:
            self.owner, self.depth = None, 0

    def _is_owned(self) -> bool:
        return self.owner is (self.baton.running or self.baton)

    def locked(self) -> bool:
        return self.owner is not None


class BatonFlag:
    """A `Flag` on the clock that stands still."""

    def __init__(self, baton: Baton) -> None:
        self.baton, self.up = baton, False

    def is_set(self) -> bool:
        return self.up

    def set(self) -> None:
        self.up = True

    def clear(self) -> None:
        self.up = False

    def wait(self, timeout_s: float) -> bool:
        until_ms = self.baton.steady_ms + max(1, int(timeout_s * 1000))
        self.baton.wait(lambda: self.up or self.baton.steady_ms >= until_ms, until_ms)
        return self.up


class BatonThread:
    """A `BackgroundThread` that waits for the baton."""

    def __init__(
        self,
        baton: Baton,
        name: str,
        body: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.baton, self.name, self.body = baton, name, body

    def start(self) -> None:
        self.task = self.baton.spawn(self.name, self.body)

    def join(self) -> None:
        self.baton.play(lambda: self.task.ended)
        if not self.task.ended:
            raise StuckError(f"{self.name} does not end")


def stand_ins(baton: Baton) -> dict[Any, Any]:
    """Return what is to be put in the place of each of the product's functions."""
    found: dict[Any, Any] = {}
    for name in ATOMICS:
        twin = getattr(intrinsics, name, None) or getattr(record, name)

        def atomic(*args: Any, twin: Any = twin) -> Any:
            baton.boundary()
            value = twin(*args)
            baton.boundary()
            return value

        found[twin] = atomic

    def lock_acquire(lock: Any) -> None:
        baton.boundary()
        key = lock.ctypes.data
        if key in baton.held:
            baton.wait(lambda: key not in baton.held)
        baton.held[key] = baton.running
        baton.boundary()

    def lock_if_free(lock: Any) -> bool:
        baton.boundary()
        if lock.ctypes.data in baton.held:
            return False
        baton.held[lock.ctypes.data] = baton.running
        baton.boundary()
        return True

    def lock_release(lock: Any) -> None:
        baton.boundary()
        baton.held.pop(lock.ctypes.data, None)
        baton.boundary()

    def wait_readable(poll_words: Any, timeout_ns: int) -> None:
        fd = int(poll_words[0]) & 0x7FFFFFFF
        until_ms = baton.steady_ms + -(-int(timeout_ns) // 1_000_000)

        def is_readable() -> bool:
            return bool(select.select([fd], [], [], 0)[0])

        baton.wait(lambda: baton.steady_ms >= until_ms or is_readable(), until_ms)
        if is_readable():
            os.read(fd, 8)

    def sleep_while(words: Any, at: int, value: int, limit_at: int) -> None:
        limit_ms = int(words[limit_at]) * 1_000 + int(words[limit_at + 1]) // 1_000_000
        # Who would look up by himself some time shall be woken before.
        until_ms = baton.steady_ms + 1 if limit_ms == 0 else None

        def is_over() -> bool:
            return bool(words[at] != value) or (until_ms or baton.steady_ms + 1) <= baton.steady_ms

        baton.wait(is_over, until_ms)

    def clock_ms(scratch: Any) -> int:
        now_ms = baton.now_ms
        baton.boundary()
        return now_ms

    return found | {
        locks.lock_acquire: lock_acquire,
        locks.lock_if_free: lock_if_free,
        locks.lock_release: lock_release,
        system.wait_readable: wait_readable,
        system.clock_ms: clock_ms,
        system.clock_ns: lambda scratch: baton.now_ms * 1_000_000,
        system.yield_processor: baton.pass_on,
        system.sleep_while: sleep_while,
        system.nap_us: lambda us: baton.pass_on(),
    }


class BatonClock:
    """The wall clock of a store that is played."""

    manual = False

    def __init__(self, baton: Baton) -> None:
        self.baton = baton

    @property
    def now_ms(self) -> int:
        """Return the time."""
        return self.baton.now_ms


def modules() -> list[types.ModuleType]:
    """Return the product's modules that have been imported."""
    return [m for name, m in sorted(sys.modules.items()) if name.startswith("timerstore.")]


def _copy(module: types.ModuleType, **others: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(module), **others})


@contextlib.contextmanager
def attached(baton: Baton) -> Iterator[None]:
    """Have the product's kernels and threads hand this baton on."""
    replaced, gil = stand_ins(baton), BatonLock(baton, again=True)
    fakes: dict[str, Any] = {
        "GIL_STAND_IN": guards.Guarded(gil.acquire, True, gil.release),
        "threading": _copy(
            threading,
            Lock=lambda: BatonLock(baton, again=False),
            RLock=lambda: BatonLock(baton, again=True),
        ),
        "SystemClock": lambda: BatonClock(baton),
        "Flag": lambda: BatonFlag(baton),
        "BackgroundThread": lambda *args: BatonThread(baton, *args),
        "check_interpreter": lambda: None,  # it looks whether threads are the system's
    }
    before: list[tuple[types.ModuleType, str, Any]] = []
    for module in modules():
        of_kernels = module.__name__.split(".")[1] in ("services", "wheel")
        of_kernels &= module.__name__.rpartition(".")[2] not in CALLS
        takes = of_kernels or module.__name__.endswith(".append")
        for name, value in list(vars(module).items()):
            new = None
            if isinstance(value, types.FunctionType) and value in replaced:
                if module not in (intrinsics, record, system) and (takes or name not in ATOMICS):
                    new = replaced[value]
            elif name in TINY and isinstance(value, int):
                new = TINY[name]
            elif name in fakes and module.__name__ != "timerstore.services.world.background":
                new = fakes[name]
            elif name == "time" and value is sys.modules["time"] and of_kernels:
                new = _copy(
                    value,
                    sleep=lambda seconds: baton.pass_on(),
                    monotonic=lambda: baton.steady_ms / 1000,
                )
            if new is not None:
                before.append((module, name, value))
                setattr(module, name, new)
    _attached.append(baton)
    try:
        yield
    finally:
        _attached.pop()
        for module, name, value in before:
            setattr(module, name, value)
