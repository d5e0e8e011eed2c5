"""Sleeping, unmapping, closing: where a full fence has to stand, shown on x86 with store buffers.

Each thread is a generator of memory operations; its stores wait in a buffer of its own until they
drain, in their order, at any later moment. A load sees the thread's own buffer first, then memory.
An exchange drains the buffer, then reads and writes memory at once: it is the full fence. `search`
visits every interleaving of operations and drains, each state once.

The rules, each of which is lost with one fence (or one look) less:

Sleeping. Who goes to sleep says so by an exchange, then looks for work once more. Who hands work on
    stores the ring's tail, fences, then looks whether the other sleeps; it takes the word by an
    exchange and writes the eventfd. The same holds the other way round for a full ring: its
    producer sleeps, its consumer moves the head.
Waiting for the read cursor. Three wait for each other round it, none of them for what its ring
    brings: dequeue-put for slots that were walked and for the units of the rolls that it settled;
    dequeue-get, whose near wheel is full, for the read cursor; enqueue-get, which naps, for those
    rolls. Each stores what the other waits for, fences, and looks whether it sleeps, as for a ring.
Helping. A service's step is run by whoever holds its token: the service's own thread, or one that
    has nothing better to do and sees it sleep. A token is tried by an exchange and never waited
    for. Whoever gives it back does so by an exchange, then looks at the input once more: who handed
    something on meanwhile tried the token in vain and went its way.
Unmapping. Who unmaps a segment takes it out of the table by an exchange, then waits for each
    service until its epoch is even or has changed. A service makes its epoch odd by an exchange
    before it looks anything up, and even, by a plain store, when it holds no address any more.
Closing. Who closes says that the short ways have ended, fences, then waits until nobody is inside
    the gate. A call of one kernel notes by an exchange that it is inside before it looks whether
    they have, and takes that back, by a plain store, when it works on no file any more.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

Operation = tuple  # what to do, with which word, and the value to write or to wait for
Program = Generator[Operation, int, None]
Memory = dict


class BrokenError(Exception):
    """A rule's guarantee was broken."""


def load(word: str) -> Operation:
    """Read a word."""
    return "load", word, 0


def store(word: str, value: int) -> Operation:
    """Write a word, some time later."""
    return "store", word, value


def exchange(word: str, value: int) -> Operation:
    """Write a word now and return what was there, behind all stores before."""
    return "exchange", word, value


def wait_for(word: str, value: int) -> Operation:
    """Sleep until a word has a value in memory."""
    return "wait", word, value


def write(word: str, value: int, fenced: bool) -> Operation:
    """Write a word, with a full fence or without."""
    return exchange(word, value) if fenced else store(word, value)


# --- sleeping


def hand_on(fenced: bool = True) -> Program:
    """Hand one entry on, and wake whoever sleeps."""
    yield write("tail", 1, fenced)
    if (yield load("sleeps")) and (yield exchange("sleeps", 0)):
        yield exchange("event", 1)


def sleep_until_work(fenced: bool = True, looks_again: bool = True) -> Program:
    """Take an entry, or sleep until there is one."""
    if (yield load("tail")):
        return
    yield write("sleeps", 1, fenced)
    if looks_again and (yield load("tail")):
        return
    yield wait_for("event", 1)


def make_room(fenced: bool = True) -> Program:
    """Empty a ring, and wake the producer that found it full."""
    yield write("head", 1, fenced)
    if (yield load("producer sleeps")) and (yield exchange("producer sleeps", 0)):
        yield exchange("producer event", 1)


def sleep_until_room(fenced: bool = True) -> Program:
    """Go on where there is room, or sleep until there is."""
    yield write("producer sleeps", 1, fenced)
    if not (yield load("head")):
        yield wait_for("producer event", 1)


# --- waiting for the read cursor


@dataclass(frozen=True)
class Rules:
    """What each thread does; one that it leaves out loses a wake-up."""

    hands_on_fenced: bool = True
    wakes: bool = True
    sleeps_fenced: bool = True
    looks_again: bool = True


ALL = Rules()


def hand_to(who: str, word: str, rules: Rules) -> Program:
    """Store what somebody waits for, and wake that one."""
    yield write(word, 1, rules.hands_on_fenced)
    if rules.wakes and (yield load(f"{who} sleeps")) and (yield exchange(f"{who} sleeps", 0)):
        yield exchange(f"{who} event", 1)


def sleep_until(who: str, words: tuple[str, ...], rules: Rules) -> Program:
    """Sleep until all the words are there."""
    while True:
        missing = 0
        for word in words:
            missing += not (yield load(word))
        if not missing:
            return
        yield write(f"{who} sleeps", 1, rules.sleeps_fenced)
        missing = 0
        for word in words:
            missing += not (yield load(word))
        if missing or not rules.looks_again:
            yield wait_for(f"{who} event", 1)
            yield exchange(f"{who} event", 0)
        yield exchange(f"{who} sleeps", 0)


def walk(rules: Rules = ALL) -> Program:
    """Dequeue-get: walk a slot's chain; claim the next one once the read cursor has passed one."""
    yield from hand_to("dequeue-put", "walked", rules)
    yield from sleep_until("dequeue-get", ("passed",), rules)


def settle_and_pass(rules: Rules = ALL) -> Program:
    """Dequeue-put: settle a roll, then move the read cursor over its slot."""
    yield from hand_to("enqueue-get", "rolled", rules)
    yield from sleep_until("dequeue-put", ("walked", "linked"), rules)
    yield from hand_to("dequeue-get", "passed", rules)


def link_roll(rules: Rules = ALL) -> Program:
    """Enqueue-get, and enqueue-put whose step it helps with: give the roll its unit."""
    yield from sleep_until("enqueue-get", ("rolled",), rules)
    yield from hand_to("dequeue-put", "linked", rules)


# --- helping


def step(looks_again: bool = True, fenced: bool = True, takes: bool = True) -> Program:
    """Try the token, and handle what is there; give it back, and look once more."""
    while True:
        if takes:
            if (yield exchange("token", 1)):
                return
        else:  # looked at, then written
            if (yield load("token")):
                return
            yield exchange("token", 1)
        if (yield exchange("inside", 1)):
            raise BrokenError("two threads run one step")
        tail = yield load("tail")
        yield store("handled", tail)
        yield store("inside", 0)
        yield write("token", 0, fenced)
        if not looks_again or (yield load("tail")) == (yield load("handled")):
            return


def help_on(entry: int, **rules: bool) -> Program:
    """Hand an entry on; run the next service's step where its thread sleeps."""
    yield exchange("tail", entry)
    if (yield load("sleeps")):
        yield from step(**rules)


def own_thread(**rules: bool) -> Program:
    """A service's own thread: say that it sleeps, look again, then leave the rest to helpers."""
    yield exchange("sleeps", 1)
    if (yield load("tail")) != (yield load("handled")):
        yield from step(**rules)


def all_handled(entries: int) -> Callable[[Memory], None]:
    """Return a check that everything which was handed on was handled."""

    def check(memory: Memory) -> None:
        if memory.get("tail", 0) == entries and memory.get("handled", 0) != entries:
            raise BrokenError("an entry waits, and everybody has gone")

    return check


# --- unmapping


def look_up(fenced: bool = True) -> Program:
    """Use a segment, if it is in the table, within an epoch."""
    yield write("epoch", 1, fenced)
    if not (yield load("out of the table")) and (yield load("unmapped")):
        raise BrokenError("a segment was used after it was unmapped")
    yield store("epoch", 2)


def unmap(fenced: bool = True, waits: bool = True) -> Program:
    """Take a segment out of the table, wait for who may have seen it there, unmap it."""
    yield write("out of the table", 1, fenced)
    if waits and (yield load("epoch")) == 1:
        yield wait_for("epoch", 2)
    yield exchange("unmapped", 1)


# --- closing


def go_short_way(fenced: bool = True) -> Program:
    """Work on the files, if the short ways have not ended, within the gate."""
    yield write("inside", 1, fenced)
    if not (yield load("ended")) and (yield load("closed")):
        raise BrokenError("a call works on files that were let go")
    yield store("inside", 0)


def close(fenced: bool = True, waits: bool = True) -> Program:
    """End the short ways, wait for who is on one, let the files go."""
    yield write("ended", 1, fenced)
    if waits and (yield load("inside")):
        yield wait_for("inside", 0)
    yield exchange("closed", 1)


# --- all interleavings


@dataclass
class Machine:
    """Some threads on one memory."""

    programs: list[Program]
    memory: Memory
    buffers: list[list[tuple[str, int]]]
    next: list[Operation | None]

    @classmethod
    def of(cls, programs: Iterable[Program]) -> "Machine":
        """Begin each program."""
        begun = list(programs)
        return cls(begun, {}, [[] for _ in begun], [next(program) for program in begun])

    def choices(self) -> list[tuple[int, bool]]:
        """Return what may come next: (thread, whether its oldest store drains)."""
        found = [(i, True) for i, buffer in enumerate(self.buffers) if buffer]
        for i, operation in enumerate(self.next):
            if operation is None:
                continue
            kind, word, value = operation
            blocked = kind == "exchange" and self.buffers[i]
            if kind == "wait":
                blocked = self.memory.get(word, 0) != value
            if not blocked:
                found.append((i, False))
        return found

    def go(self, i: int, drains: bool) -> None:
        """Let thread `i` do its operation, or its oldest store reach memory."""
        if drains:
            word, value = self.buffers[i].pop(0)
            self.memory[word] = value
            return
        operation = self.next[i]
        assert operation is not None
        kind, word, value = operation
        mine = [stored for name, stored in self.buffers[i] if name == word]
        seen = mine[-1] if mine else self.memory.get(word, 0)
        if kind == "store":
            self.buffers[i].append((word, value))
        elif kind == "exchange":
            self.memory[word] = value
        try:
            self.next[i] = self.programs[i].send(seen)
        except StopIteration:
            self.next[i] = None

    def state(self) -> tuple[object, ...]:
        """Return all that decides how it goes on."""
        return (
            repr(sorted(self.memory.items())),
            repr(self.buffers),
            tuple(map(place, self.programs)),
        )


def place(program: Program) -> tuple[object, ...]:
    """Return where a generator stands, with its locals, down to the innermost."""
    found, inner = [], program
    while inner is not None and inner.gi_frame is not None:
        found.append((inner.gi_frame.f_lasti, repr(sorted(inner.gi_frame.f_locals.items()))))
        inner = inner.gi_yieldfrom
    return tuple(found)


def search(
    make: Callable[[], list[Program]], at_end: Callable[[Memory], None] = lambda memory: None
) -> int:
    """Visit all interleavings; return how many states there are. Raises BrokenError."""
    seen: set[tuple[object, ...]] = set()
    todo: list[tuple[tuple[int, bool], ...]] = [()]
    while todo:
        schedule = todo.pop()
        machine = Machine.of(make())
        for choice in schedule:
            machine.go(*choice)
        while (state := machine.state()) not in seen:
            seen.add(state)
            choices = machine.choices()
            if not choices:
                if any(machine.next):
                    raise BrokenError("somebody sleeps for good")
                at_end(machine.memory)
                break
            todo += [(*schedule, choice) for choice in choices[1:]]
            schedule = (*schedule, choices[0])
            machine.go(*choices[0])
    return len(seen)
