"""The store beneath the pipeline of threads: what is durable, who may write which word, recovery.

What `tests/models/threads_model.py` needs of a store, and no thread of it: the commit log with its
queues, the timer log, the wheel, the locks as flags, recovery by the rules of today's store.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

PRECISION_MS = 2
WINDOW, HOP = 4, 2  # slots: how far ahead of now a unit may be put, and how far a roll goes
SLOTS, SPAN, LEAD = 6, 3, 1  # of the wheel (its ring has twice that), of the near wheel
CELLS = 2 * SLOTS
RING, BATCH = 3, 2
KEPT = 2 * SPAN  # the place of kept deletes, behind those of slots and of slots put aside
PLACES = KEPT + 1
LEVEL_MS, SLACK_MS = 5, 1  # the one delay level's; more ahead than that, the clock went back
FAR, NONE = 1 << 30, -1
CHAIN = ("enqueue_get", "enqueue_put", "dequeue_get", "dequeue_put")
SERVICES = (*CHAIN, "deliver_levels")

WRONG = (
    "claims without wheel",
    "C is read before wheel",
    "R is read before wheel",
    "R moves without wheel",
    "R is judged before wheel",
    "R passes what is claimed, not walked",
    "R outruns the checkpoint",
    "Q after ring B",
    "set is read before fire",
    "settles after fire",
    "deletes at once",
    "frontier ignores deletes",
    "L without fire",
    "R before L",
    "pages before Q",
    "units are synced to Q's end",
    "levels without fire",
    "level offset after fire",
    "level offset is captured before",
    "level file before the log",
    "held deletes are forgotten",
    "L ignores held deletes",
    "reschedule in two appends",
    "torn reschedules stay",
    "cancel passes ring B by",
    "cancel passes ring C by",
    "tokens are looked at, then taken",
    "cancel passes what was put aside by",
    "R passes what was put aside",
    "R leaves stragglers behind",
    "R leaves kept deletes behind",
    "L forgets what went before",
    "deletes go before what was put aside",
    "what was not appended is settled",
    "levels pass what was not appended",
    "walks end where nothing is mapped",
    "needs are answered under fire",
    "levels wait for a clock that went back",
    "levels clamp without slack",
    "a level's clock is read before its end",
)

Steps = Generator[Callable[[], Any] | None, None, Any]


class BrokenError(Exception):
    """The protocol broke a promise."""


def check(holds: object, promise: str) -> None:
    """Be the oracle."""
    if not holds:
        raise BrokenError(promise)


class OwnerError(Exception):
    """The model itself is wrong: somebody wrote what is another's."""


class Column(list):
    """A list among some words, as safe as they are."""

    def __init__(self, words: "Words", values: list[Any]) -> None:
        super().__init__(values)
        self._words = words

    def __setitem__(self, place: Any, value: Any) -> None:
        self._words.check_writer()
        super().__setitem__(place, value)

    def append(self, value: Any) -> None:
        self._words.check_writer()
        super().append(value)

    def remove(self, value: Any) -> None:
        self._words.check_writer()
        super().remove(value)


class Message(NamedTuple):
    """One message of the commit log; `id` is the offset of the first with its identity."""

    kind: str  # timer, delete, level, fired
    id: int
    due: int
    origin: int = NONE  # what it is a copy of
    replaces: int = NONE


class Unit(NamedTuple):
    """One unit of the timer log."""

    before: int  # the one that was linked into the slot before it
    slot: int
    message: int
    rolls: bool


class Words:
    """The words that one owner writes; with the owner None whoever has the lock does."""

    def __init__(self, store: "Store", owner: str | None, **words: Any) -> None:
        columns = {k: Column(self, v) for k, v in words.items() if isinstance(v, list)}
        self.__dict__.update(_store=store, _owner=owner, **(words | columns))

    def __setattr__(self, name: str, value: Any) -> None:
        self.check_writer()
        self.__dict__[name] = value

    def check_writer(self) -> None:
        """Refuse a write by anybody but the owner."""
        writer = self._store.writer
        if self._owner not in (None, writer) and writer != "recovery":
            raise OwnerError(f"{writer} writes words of {self._owner}")

    def __repr__(self) -> str:
        return repr([value for name, value in self.__dict__.items() if name[0] != "_"])


class Store:
    """One store: what is durable, the words of its services, their steps."""

    def __init__(self, wrong: tuple[str, ...] = (), now: int = 20) -> None:
        assert set(wrong) <= set(WRONG)
        self.wrong, self.now, self.latest = wrong, now, now  # `latest`: the clock may go back
        self.log: list[Message] = []
        self.units: list[Unit] = []
        self.acked = self.synced = 0  # what a power cut leaves of the two
        slot = now // PRECISION_MS
        self.checkpoint = {"R": slot, "Q": 0, "L": 0, "units": 0, "offset": 0}
        self.checkpoint["frontier"] = slot * PRECISION_MS - 1
        self.disk: list[tuple[int, int]] = [(NONE, NONE)] * CELLS  # the wheel: slot, last unit
        self.level_file = 0
        self.clamped: set[int] = set()  # the oracle's: the clock went back behind their put
        self.recover()

    def right(self, rule: str) -> bool:
        """Whether the protocol is to be followed where this wrong variant departs from it."""
        return rule not in self.wrong

    # --- recovery, by today's rules

    def recover(self) -> None:
        """Begin a life: cut, find the copies from L on, link from Q on, gather the deletes."""
        self.writer, kept = "recovery", self.checkpoint
        self.needs = dict.fromkeys(SERVICES, False)
        self.lacking = dict.fromkeys(SERVICES, False)  # its next segment, mapping, or row
        last = self.log[-1] if self.log else None
        self.timer_queue = [o for o, m in enumerate(self.log) if m.kind in ("timer", "delete")]
        self.level_queue = [o for o, m in enumerate(self.log) if m.kind == "level"]
        if last is not None and last.replaces != NONE and last.origin == NONE:
            if self.right("torn reschedules stay"):
                self.append(Message("delete", last.replaces, self.log[last.replaces].due))
        passed, linked = kept["R"], kept["Q"]
        # What ended before this life began is put aside: [R, front).
        now_slot = self.now // PRECISION_MS
        front = now_slot if passed < now_slot < passed + SLOTS - SPAN else passed
        copies = [(o, m) for o, m in enumerate(self.log) if o >= kept["L"]]
        frontier = max([kept["frontier"], *(m.due for _, m in copies if m.kind == "fired")])
        self.held_locks = dict.fromkeys(("gil", "fire", "near", "wheel"), False)
        self.tokens = dict.fromkeys(SERVICES, False)
        self.level_stalls = False  # there is no room for what a level delivers
        self.ring_a: list[int] = []  # messages
        self.ring_b: list[int] = []  # units
        self.ring_c: list[tuple[int, int]] = []  # units, each with its place
        self.enqueue_get = Words(self, "enqueue_get", fetched_index=linked)
        self.enqueue_put = Words(
            self, "enqueue_put", linked_index=linked, late=[0] * PLACES, straggler=NONE
        )
        self.dequeue_get = Words(
            self,
            "dequeue_get",
            near=[],  # (bucket, unit, due, place)
            deletes=[],  # (slot, unit, place)
            claimed_slot=front,
            claim_at=NONE,  # the unit at which walking the claimed slot's chain goes on
            walked_slot=front,
            aside_claimed_slot=passed,  # the same of what was put aside
            aside_claim_at=NONE,
            aside_walked_slot=passed,
            chained=[0] * PLACES,
        )
        self.dequeue_put = Words(
            self,
            "dequeue_put",
            passed_slot=passed,
            front_slot=front,
            aside_stop=front if front > passed else NONE,
            front_copy=FAR,  # the first copy of slots that the front has passed, and R has not
            settled=[0] * PLACES,
            first_copy=[FAR] * PLACES,
            roll_index=[0] * PLACES,
            rolls_before=0,
            frontier=frontier,
        )
        offset = min(max(kept["offset"], self.level_file), len(self.level_queue))
        self.deliver_levels = Words(self, "deliver_levels", offset=offset)
        self.flush = Words(self, "flush", checkpointed_slot=passed)
        self.fire = Words(self, None, cancelled=set(), held=set(), held_from=FAR)
        self.inserted: set[int] = set()  # the oracle's own
        self.settled_units: set[int] = set()
        self.done = {m.origin: o for o, m in copies if m.origin != NONE}
        self._recover_wheel(kept["units"])
        self.passed_before = {u for u, entry in enumerate(self.units) if entry.slot < passed}
        self._recover_sets(kept["L"])
        self.writer = "nobody"

    def _recover_wheel(self, unit_count: int) -> None:
        self.disk = [self._cut(cell, unit_count) for cell in self.disk]
        self.wheel = list(self.disk)
        del self.units[unit_count:]
        own = self.enqueue_put
        while own.linked_index < len(self.timer_queue):
            message = self.timer_queue[own.linked_index]
            slot, rolls = self.place(message, self.dequeue_put.passed_slot)
            self.wheel[slot % CELLS] = (slot, self.write_unit(message, slot, rolls))
            own.linked_index += 1
        self.enqueue_get.fetched_index = own.linked_index

    def _cut(self, cell: tuple[int, int], unit_count: int) -> tuple[int, int]:
        slot, unit = cell
        check(unit < len(self.units), "a slot on disk points to a unit that is not there")
        while unit >= unit_count:
            unit = self.units[unit].before
        return (slot, unit) if unit != NONE else (NONE, NONE)

    def _recover_sets(self, scan_from: int) -> None:
        for index, message in enumerate(self.level_queue):
            if message in self.done:  # loops deliver in order: all before it was delivered
                offset = max(self.deliver_levels.offset, index + 1)
                self.deliver_levels.offset = offset
        live = [u for u in self.units if u.slot >= self.dequeue_put.passed_slot]
        deletes = [self.log[u.message] for u in live if self.log[u.message].kind == "delete"]
        self.fire.cancelled = {m.id for m in deletes if self.still_counts(m)}
        for offset, m in enumerate(self.log[scan_from:], scan_from):
            if m.kind == "delete" and self.log[m.id].kind == "level" and self.still_counts(m):
                if m.id not in self.fire.cancelled:
                    self.fire.held |= {m.id}
                    self.fire.held_from = min(self.fire.held_from, offset)
        self.fire.cancelled |= self.fire.held
        # Copies of an earlier life keep L until R has passed the slots of their sources.
        self.recovered_copy = min(self.done.values(), default=FAR)
        self.recovered_until = max([u.slot for u in live if u.message in self.done], default=NONE)

    def still_counts(self, delete: Message) -> bool:
        """Whether a delete's target may still come: a level's once its loop has not passed it."""
        if self.log[delete.id].kind != "level":
            return True
        return self.level_queue.index(delete.id) >= self.deliver_levels.offset

    # --- locks, the log, the wheel

    def take(self, *names: str) -> Steps:
        """Take locks, one after the other."""
        for name in names:
            yield lambda: not self.held_locks[name]  # noqa: B023
            self.held_locks[name] = True

    def give(self, *names: str) -> None:
        """Give locks back."""
        for name in names:
            self.held_locks[name] = False

    def lacks(self, name: str) -> bool:
        """Whether a service needs Python to make something, and stands still until then."""
        self.needs[name] |= self.lacking[name]
        return self.needs[name]

    def answer(self, name: str) -> Steps:
        """Make, in Python, what a service lacks."""
        yield from self.take("gil")
        self.lacking[name] = False
        yield None
        self.give("gil")
        self.needs[name] = False

    def note_clock(self) -> None:
        """Note, for the oracle, whose due times the clock went back behind."""
        behind = self.now + LEVEL_MS + SLACK_MS
        self.clamped |= {each for each in self.level_queue if self.log[each].due > behind}

    def unless(self, rule: str, *names: str) -> tuple[str, ...]:
        """Return the locks, or none where a wrong variant does without."""
        return names if self.right(rule) else ()

    def append(self, *messages: Message) -> int:
        """Append what goes together; return the first one's offset. Under the append lock."""
        first = len(self.log)
        for message in messages:
            if message.id == NONE:
                message = message._replace(id=len(self.log))
            self.log.append(message)
            if message.kind in ("timer", "delete"):
                self.timer_queue.append(len(self.log) - 1)
            elif message.kind == "level":
                self.level_queue.append(len(self.log) - 1)
                self.note_clock()
        return first

    def chain(self, unit: int) -> Iterator[int]:
        """Walk a slot's units, the newest first."""
        while unit != NONE:
            yield unit
            unit = self.units[unit].before

    def head(self, slot: int) -> int:
        """Return the last unit of a slot."""
        found, unit = self.wheel[slot % CELLS]
        return unit if found == slot else NONE

    def place(self, message: int, passed_slot: int) -> tuple[int, bool]:
        """Return the slot for a message, and whether it rolls on from there; as wheel/place.py."""
        if message in self.done:
            return passed_slot, False
        own, base = self.log[message].due // PRECISION_MS, self.now // PRECISION_MS
        base, top = max(base, passed_slot), self.flush.checkpointed_slot + CELLS
        hops = (own - base - WINDOW) // HOP + 1 if own >= base + WINDOW else 0
        while own - hops * HOP >= top:
            hops += 1
        return max(own - hops * HOP, passed_slot), hops > 0

    def write_unit(self, message: int, slot: int, rolls: bool) -> int:
        """Append a unit to the timer log; return its number."""
        durable = self.flush.checkpointed_slot
        check(self.dequeue_put.passed_slot <= slot < durable + CELLS, "a unit outside [R, top)")
        holds = self.wheel[slot % CELLS][0]
        check(holds < durable or holds == slot, "one cell of the wheel is needed for two slots")
        self.units.append(Unit(self.head(slot), slot, message, rolls))
        return len(self.units) - 1
