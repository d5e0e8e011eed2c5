"""Plays `threads_model.py`: random histories with crashes, all interleavings of small scenes.

A scene is searched depth first over schedules, each state once; a state is all words, with each
thread's place and its locals. In each state whose durable part is new the process is also killed,
and the power cut, then recovered, drained and judged.
"""

import copy
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.models.threads_model import Pipeline
from tests.models.threads_store import LEVEL_MS, SERVICES, SLACK_MS, Steps, check

DURABLE = ("now", "latest", "log", "units", "acked", "synced", "checkpoint", "disk", "level_file")
DURABLE += ("clamped",)  # the oracle's
Scene = Callable[[tuple[str, ...]], tuple[Pipeline, "list[Thread]"]]


class Thread:
    """A generator that runs one action at a time."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.condition: Callable[[], Any] | None = None
        self.ended = False

    def ready(self) -> bool:
        """Whether it could act now."""
        return not self.ended and (self.condition is None or bool(self.condition()))

    def step(self) -> None:
        """Act once."""
        try:
            self.condition = next(self.steps)
        except StopIteration:
            self.ended = True


def services(store: Pipeline, helps: bool) -> list[Thread]:
    """Return a new life's threads."""
    return [Thread(store.service_thread(name, helps)) for name in SERVICES]


def flush(store: Pipeline) -> Thread:
    """Return a thread that writes one checkpoint."""
    return Thread(store.acting("flush", store.flush_steps()))


# --- crashes, and what must hold in the end


def crash(store: Pipeline, rnd: random.Random) -> None:
    """Kill the process; or cut the power, which also takes what was not synced."""
    if rnd.random() < 0.5:
        del store.log[rnd.randint(store.acked, len(store.log)) :]
        del store.units[rnd.randint(store.synced, max(store.synced, len(store.units))) :]
    store.recover()


def drain(store: Pipeline, threads: list[Thread], rnd: random.Random) -> None:
    """Run until nothing is left to come, then judge."""
    store.level_stalls = False
    for _ in range(20_000):
        ready = [thread for thread in threads if thread.ready()]
        if ready:
            rnd.choice(ready).step()
        elif is_empty(store):
            break
        else:  # nothing to do before the clock moves, or before a checkpoint
            check(not level_waits(store), "a level's message waits for a clock that went back")
            flushing = flush(store)
            while not flushing.ended:
                check(flushing.ready(), "a lock was not given back")
                flushing.step()
            move_clock(store, 1)
    check(not ready and is_empty(store), "stuck")
    judge(store)


def level_waits(store: Pipeline) -> bool:
    """Whether a level's next message lies further ahead than a level."""
    heads = store.level_queue[store.deliver_levels.offset :][:1]
    return any(store.log[each].due > store.now + LEVEL_MS + SLACK_MS for each in heads)


def is_empty(store: Pipeline) -> bool:
    """Whether everything that was put has come."""
    linked = store.enqueue_put.linked_index == len(store.timer_queue)
    delivered = store.deliver_levels.offset == len(store.level_queue)
    passed = all(unit.slot < store.dequeue_put.passed_slot for unit in store.units)
    return linked and delivered and passed


def judge(store: Pipeline) -> None:
    """Judge a log in which everything has come."""
    fired = Counter(m.id for m in store.log if m.kind == "fired")
    deletes = Counter(m.id for m in store.log if m.kind == "delete" and m.origin < 0)
    for offset, m in enumerate(store.log):
        if m.kind in ("timer", "level") and m.origin < 0:
            check(fired[offset] <= 1, "fired twice")
            check(deletes[offset] <= 1, "cancelled twice")
            check(not (fired[offset] and deletes[offset]), "fired and cancelled")
            check(fired[offset] or deletes[offset], "lost")
            check(m.replaces < 0 or deletes[m.replaces], "the old time holds beside the new one")
    level = [m.id for m in store.log if m.kind == "fired" and store.log[m.id].kind == "level"]
    check(level == sorted(level), "a level delivered out of order")


def move_clock(store: Pipeline, by_ms: int) -> None:
    """Move the clock; nothing may fire before what it has ever shown."""
    store.now += by_ms
    store.latest = max(store.now, store.latest)
    store.note_clock()


# --- random histories


def history(seed: int, wrong: tuple[str, ...] = ()) -> int:
    """Play one history of up to four lives; return its actions. Raises BrokenError."""
    rnd, actions = random.Random(seed), 0
    store, room, stick = Pipeline(wrong), rnd.randint(2, 14), rnd.choice((0, 0.5, 0.9))
    rates = {name: rnd.choice((0.01, 0.04, 0.1)) for name in ("put", "cancel", "flush", "clock")}
    helps, levels = rnd.random() < 0.5, rnd.choice((0, 0.3, 0.7))
    lacks = rnd.choice((0, 0.01, 0.05))
    for life in range(rnd.randint(1, 4)):
        if life:
            crash(store, rnd)
        threads, now, flushing = services(store, helps), None, Thread(iter(()))
        flushing.ended = True
        for _ in range(rnd.randint(10, 400)):
            ids = [o for o, m in enumerate(store.log) if is_put(m)]
            if rnd.random() < rates["put"] and len(ids) < room:
                threads.append(Thread(random_put(store, rnd, levels)))
            if rnd.random() < rates["cancel"] and ids:
                threads.append(Thread(random_cancel(store, rnd, rnd.choice(ids[-3:]))))
            if rnd.random() < rates["flush"] and flushing.ended:
                flushing = flush(store)
                threads.append(flushing)
            if rnd.random() < rates["clock"]:
                move_clock(store, 1 if rnd.random() < 0.93 else -rnd.randint(1, 5))
            if levels and rnd.random() < 0.02:
                store.level_stalls = not store.level_stalls
            if rnd.random() < lacks:
                store.lacking[rnd.choice(SERVICES)] = True
            threads = [thread for thread in threads if not thread.ended]
            ready = [thread for thread in threads if thread.ready()]
            if ready and (now not in ready or rnd.random() >= stick):
                now = rnd.choice(ready)
            if ready and now is not None:
                now.step()
                actions += 1
    drain(store, threads, rnd)
    return actions


def is_put(m: Any) -> bool:
    """Whether somebody put this message."""
    return m.kind in ("timer", "level") and m.origin < 0


def random_put(store: Pipeline, rnd: random.Random, levels: float) -> Steps:
    """Return a put at a level, or of a timer."""
    if rnd.random() < levels:
        return store.put_at_level()
    return store.put(store.now + rnd.choice((-3, 0, 1, 2, 3, 5, 8, 13, 30)))


def random_cancel(store: Pipeline, rnd: random.Random, id: int) -> Steps:
    """Return a cancel, or a reschedule where that is for a timer."""
    if store.log[id].kind == "timer" and rnd.random() < 0.3:
        return store.reschedule(id, store.now + rnd.choice((0, 2, 5, 13)))
    return store.cancel(id)


# --- all interleavings of a scene


def place(steps: Any) -> tuple[object, ...]:
    """Return where a generator stands, with its locals, down to the innermost."""
    found: list[object] = []
    while getattr(steps, "gi_frame", None) is not None:
        names = dict(steps.gi_frame.f_locals)
        inner = names.pop("steps", None) or steps.gi_yieldfrom
        mine = sorted((name, value) for name, value in names.items() if plain(value))
        found.append((steps.gi_frame.f_lasti, repr(mine)))
        steps = inner
    return tuple(found)


def plain(value: object) -> bool:
    """Whether a local is a value, and no door to the words, which a state has anyway."""
    return isinstance(value, int | str | tuple | dict | list | None) and not callable(value)


def state(store: Pipeline, threads: Sequence[Thread]) -> int:
    """Return all that decides how it goes on, as one number."""
    words = sorted((k, repr(v)) for k, v in store.__dict__.items() if k != "wrong")
    return hash((repr(words), tuple(place(thread.steps) for thread in threads)))


def survives(store: Pipeline, log_end: int | None = None) -> None:
    """Kill a copy of the store, or cut its power with the log up to there; recover, judge it."""
    twin = copy.copy(store)
    for name in DURABLE:
        setattr(twin, name, copy.deepcopy(getattr(store, name)))
    if log_end is not None:
        del twin.log[log_end:]
        del twin.units[twin.synced :]
    twin.recover()
    drain(twin, services(twin, True), random.Random(1))


def explore(
    scene: Scene,
    wrong: tuple[str, ...] = (),
    *,
    states_max: int | None = None,
    seconds: float = 0.0,
    crashes: bool = True,
) -> tuple[int, bool]:
    """Visit all interleavings, or so many states, or for so many seconds, where that is not 0.

    Return how many states were visited, and whether these are all. Raises BrokenError.
    """
    seen: set[int] = set()
    durables: set[int] = set()
    todo: list[tuple[int, ...]] = [()]
    until = time.monotonic() + (seconds or float("inf"))
    while todo and time.monotonic() < until and len(seen) < (states_max or 1 << 60):
        schedule = todo.pop()
        store, threads = scene(wrong)
        for i in schedule:
            threads[i].step()
        while (at := state(store, threads)) not in seen:
            seen.add(at)
            durable = hash(repr([getattr(store, name) for name in DURABLE]))
            if crashes and durable not in durables:
                durables.add(durable)
                survives(store)
                for end in {store.acked, max(store.acked, len(store.log) - 1)}:
                    survives(store, end)
            ready = [i for i, thread in enumerate(threads) if thread.ready()]
            if not ready:
                drain(store, threads, random.Random(1))
                break
            todo += [(*schedule, i) for i in ready[1:]]
            schedule = (*schedule, ready[0])
            threads[ready[0]].step()
    return len(seen), not todo


def stroll(scene: Scene, seed: int, wrong: tuple[str, ...] = ()) -> None:
    """Play a scene once, by a random schedule. Raises BrokenError."""
    rnd = random.Random(seed)
    store, threads = scene(wrong)
    now, stick = threads[0], rnd.choice((0.3, 0.7, 0.9))
    while ready := [thread for thread in threads if thread.ready()]:
        if now not in ready or rnd.random() >= stick:
            now = rnd.choice(ready)
        now.step()
    drain(store, threads, rnd)


def tick(store: Pipeline, times: int) -> Iterator[None]:
    """Let time pass."""
    for _ in range(times):
        move_clock(store, 1)
        yield


def scene(
    puts: Sequence[int] = (),
    *,
    early: Sequence[int] = (),
    levels: int = 0,
    cancels: Sequence[int] = (),
    reschedules: Sequence[int] = (),
    flushes: int = 0,
    ticks: int = 0,
    start: int = 20,
    stop: int = 0,
    lacks: Sequence[str] = (),
    helps: bool = False,
) -> Scene:
    """Return a scene: R is 10 (at 20 ms), `start` is the clock.

    `stop`: so long nobody has the store open, after what is `early` was put.

    `early`: due times that are linked before it begins; `puts`: put before, not linked yet; then
    `levels` messages that the level delivers at once. `lacks`: services that need Python once.
    `cancels`, `reschedules`: what callers do at
    the same time, by number of the put.
    """

    def make(wrong: tuple[str, ...]) -> tuple[Pipeline, list[Thread]]:
        store = Pipeline()
        before = [store.put(due) for due in early]
        after = [store.put(due) for due in puts]
        for _ in itertools.chain(*before):
            pass
        move_clock(store, stop)
        store.recover()
        store.wrong = wrong
        store.now -= LEVEL_MS
        after += [store.put_at_level() for _ in range(levels)]
        for _ in itertools.chain(*after):
            pass
        store.now = store.latest = start
        store.lacking |= dict.fromkeys(lacks, True)
        threads = services(store, helps)
        threads += [Thread(store.cancel(id)) for id in cancels]
        threads += [Thread(store.reschedule(id, 23)) for id in reschedules]
        threads += [flush(store) for _ in range(flushes)]
        if ticks:
            threads.append(Thread(tick(store, ticks)))
        return store, threads

    return make


SCENES = {
    "claim against link": scene([23]),
    "claim against link, chain": scene([23], early=[23]),
    "overdue arrival against R": scene([20], start=22),
    "two overdue arrivals against R": scene([20, 21], start=22),
    "cancel against taking": scene([20], cancels=[0]),
    "two cancels": scene(early=[20], cancels=[0, 0]),
    "cancel, taking, R": scene(early=[21], cancels=[0], start=22),
    "capture against firing": scene(early=[20, 20], flushes=1),
    "capture against linking and firing": scene([20], flushes=1),
    "capture, cancel, firing": scene(early=[20], cancels=[0], flushes=1),
    "capture, firing, R": scene(early=[21], flushes=1, start=22),
    "capture, cancel, linking": scene([23], cancels=[0], flushes=1),
    "a roll": scene(early=[30], start=26),
    "reschedule against firing": scene(early=[20], reschedules=[0]),
    "reschedule against cancel": scene(early=[20], reschedules=[0], cancels=[0]),
    "capture, level": scene(levels=2, flushes=1),
    "cancel against a level": scene(levels=1, cancels=[0]),
    "a level's cancel, capture": scene(levels=1, cancels=[0], flushes=1),
    "put aside, what is due now": scene([24], early=[21], stop=4, start=24),
    "put aside, cancel": scene([24], early=[21, 22], stop=4, start=24, cancels=[1]),
    "put aside, capture, R": scene([24], early=[21], stop=4, start=26, flushes=1),
    "put aside, a straggler": scene([25], early=[21], stop=4, start=27),
    "firing needs a segment, cancel": scene(early=[20, 20], cancels=[1], lacks=["dequeue_put"]),
    "walking needs a segment": scene(early=[20, 20], start=22, lacks=["dequeue_get"]),
    "linking needs a segment": scene([20, 23], start=22, lacks=["enqueue_put", "enqueue_get"]),
    "a level needs a segment": scene(levels=2, cancels=[1], lacks=["deliver_levels"]),
    "helping": scene([20], helps=True),
    "helping, claim against link": scene([23], helps=True),
}
