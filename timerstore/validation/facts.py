"""What the parts of a store say: what is wrong, and what is to meet what others say.

The former are counts and places, which can be merged in any order. The latter are rows of tables: a
rule that needs two places of a store, such as a slot with its units, is a query over these
(`timerstore/audit/integrity/`).
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.audit.rule import Example
from timerstore.jit.record import Flags, Words
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.reading.reader import Fault
from timerstore.validation.plan import Scope

SOURCES: Final = "sources"
UNITS: Final = "units"
SLOTS: Final = "slots"
LOADS: Final = "loads"
MESSAGES: Final = "messages"
LOST: Final = "lost"
LATE: Final = "late"
GROWN: Final = "grown"
ROLLS: Final = "rolls"
SUMMED: Final = {LATE: 3, GROWN: 2, ROLLS: 1}
"""Tables of sums: so many columns say what is counted, the others how often."""
_COLUMNS: Final[dict[str, tuple[str, str]]] = {
    # One row: where the parts end.
    SOURCES: (
        "read_slot read_ms precision_ms units_start linked_again slots_anew floor_at log_start "
        "salvaged_to checkpoint_floor scan_from",
        "is_wheel_torn is_our_store is_handed_over",
    ),
    # Units that are sound. `message`: −1 if it is none. `who`: as of messages. Superseded: the
    # timer waits elsewhere, it was moved or hopped on. Waiting: in a slot that has not passed.
    # Early: before the due time.
    UNITS: (
        "slot unit prev message who",
        "is_delete is_roll is_superseded is_waiting is_early is_hop is_by_broker",
    ),
    SLOTS: ("slot ring_index first_unit last_unit stored_count", ""),
    # If the store is measured: live units ahead. `belongs`: the slot that its message says.
    LOADS: ("slot message size topic_hash belongs", "is_late"),
    # What timers have: kinds below. `who`: the timer. `due_ms`: of a broker's copy without a due
    # time when it was stored. `origin`: of what it is a copy, −1. Unlinked: its entry is still to
    # be read. Old: before the first unit that is kept. First: not sent back, so a delete of its
    # key means it. Filler: of a salvage, for the copy that was lost there.
    MESSAGES: (
        "message who kind due_ms rolls topic origin",
        "is_copy is_unlinked is_old is_ours is_without_due is_first is_filler",
    ),
    # Ranges of the commit log that are damaged, or covered by a salvage.
    LOST: ("start_at stop_at", ""),
    # If the store is measured: what fired, what was appended, what rolls have still to do: hops to
    # come; timers that are not cancelled, bytes of one hop of all.
    LATE: ("topic hour late_ms fired", ""),
    GROWN: ("hour kind messages bytes", ""),
    ROLLS: ("hops timers bytes", ""),
}
SCHEMAS: Final = {
    name: pa.schema(
        [(each, pa.int64()) for each in numbers.split()]
        + [(each, pa.bool_()) for each in flags.split()]
    )
    for name, (numbers, flags) in _COLUMNS.items()
}

NO_MESSAGE: Final = -1

# Kinds of messages; a copy for a later slot is one of `GROWN` alone.
NO_TIMER: Final = -1
TIMER: Final = 0
DELETE: Final = 1
FIRED: Final = 2
IN_LEVEL: Final = 3
MOVED: Final = 4

Facts = dict[str, Any]
"""Arrow tables by name."""


def facts_of(name: str, columns: Mapping[str, Any]) -> Any:
    """Return rows of a table as Arrow has them, given by their columns, [n] each: copies."""
    schema = SCHEMAS[name]
    made = [pa.array(np.array(columns[field.name]), field.type) for field in schema]
    return pa.table(made, schema=schema)


def summed(name: str, rows: Any) -> Any:
    """Add up the rows of a table of sums that are about the same."""
    names, keys = SCHEMAS[name].names, SUMMED[name]
    added = rows.group_by(names[:keys], use_threads=False).aggregate(
        [(each, "sum") for each in names[keys:]]
    )
    return added.rename_columns([each.removesuffix("_sum") for each in added.column_names]).select(
        names
    )


def fold_identity(high: Words, low: Words) -> Words:
    """Return one int64 that stands for a timer; ours are told by their first put's offset."""
    folded: Words = np.where(high == IDENTITY_OURS, low, (high * np.int64(31)) ^ low)
    return folded


_EXACT_BITS: Final = 10


def lateness_told(late_ms: Words) -> Words:
    """Return lateness as it is counted: early is 0, a large one keeps its ten highest bits. O(n).

    So up to 1,023 ms it is exact, and above less than 0.2 % off.
    """
    late_ms = np.maximum(late_ms, 0)
    bits = np.frexp(late_ms.astype(np.float64))[1] - _EXACT_BITS
    shift = np.maximum(bits, 0).astype(np.int64)
    told: Words = (late_ms >> shift) << shift
    return told


def hops_to_come(hops: Words, hop: int, window: int) -> Words:
    """Return how often timers are passed on that are so many hops away: int64[n].

    A timer that is put down again goes as far as the window allows: see `wheel/timerwheel.py`.
    """
    rolled = hops > 0
    far = rolled & (hops * hop >= window)
    left = (hops * hop - window) // hop + 1  # after the first time, in hops
    limit = -(-window // hop)  # from so many hops on a timer is passed on again
    again = np.maximum(0, -((limit - 1 - left) // max(1, limit - 1)))
    found: Words = np.where(rolled, 1, 0) + np.where(far, 1 + again, 0)
    return found


EXAMPLES_MAX: Final = 20
"""Places that a rule names one by one, those with the lowest offsets; all are counted."""
PLACES_MAX: Final = 1_000
"""The same if the places are asked for."""


@dataclass
class RulePlaces:
    """Places by rule: how many there are, and the first of them."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)

    def __getitem__(self, rule: str) -> int:
        return self.counts[rule]

    def add(self, rule: str, count: int, examples: Iterable[Example], named_max: int) -> None:
        """Take in places of a rule, of which some are named."""
        if count:
            self.counts[rule] += int(count)
            known = self.examples.get(rule, [])
            self.examples[rule] = heapq.nsmallest(named_max, [*known, *examples])

    def merge(self, other: RulePlaces, named_max: int) -> None:
        """Take in other places."""
        for rule, count in other.counts.items():
            self.add(rule, count, other.examples[rule], named_max)


@dataclass
class Evidence:
    """Counts and examples; merging is associative, and the order does not matter."""

    checked: Counter[str] = field(default_factory=Counter)
    failed: RulePlaces = field(default_factory=RulePlaces)
    mended: RulePlaces = field(default_factory=RulePlaces)
    """What a crash leaves, and the next opening mends."""
    named_max: int = EXAMPLES_MAX
    counts: Counter[str] = field(default_factory=Counter)
    topics: dict[int, str] = field(default_factory=dict)
    """Names of topics by the number that stands for them in facts."""
    queues: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By queue: the lowest and the highest index of its messages, and how many there are."""
    spent: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(float), compare=False
    )
    """Seconds that each query over all facts took."""
    groups: list[dict[str, Any]] = field(default_factory=list)
    """If the store is measured: how far groups are in the queues that they read."""
    measures: dict[str, Any] = field(default_factory=dict)
    """If it is: what the queries of `timerstore/audit/results` return, Arrow tables by name."""

    def check(self, rule: str, count: int) -> None:
        """Note that so many were looked at."""
        self.checked[rule] += int(count)

    def fail(
        self, rule: str, count: int, examples: Iterable[Example], *, torn: bool = False
    ) -> None:
        """Note failures, with some of their places; `torn`: the next opening mends them."""
        (self.mended if torn else self.failed).add(rule, count, examples, self.named_max)

    def merge(self, other: Evidence) -> None:
        """Take in what another tally found."""
        self.failed.merge(other.failed, self.named_max)
        self.mended.merge(other.mended, self.named_max)
        self.checked.update(other.checked)
        self.counts.update(other.counts)
        self.topics.update(other.topics)
        for queue, (low, high, count) in other.queues.items():
            before = self.queues.get(queue)
            if before is not None:
                low, high, count = min(low, before[0]), max(high, before[1]), count + before[2]
            self.queues[queue] = low, high, count
        self.groups += other.groups

    @classmethod
    def of(cls, scope: Scope) -> Evidence:
        """Return one in which nothing was found."""
        return cls(named_max=PLACES_MAX if scope.only_bytes else EXAMPLES_MAX)


class Findings:
    """A tally, with the facts that are still to meet."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.tally = scope, Evidence.of(scope)
        self._facts: dict[str, list[Any]] = {}

    def tell(self, table: str, **columns: Words | Flags) -> None:
        """Keep rows of a table, given by their columns, unless only bytes are asked for."""
        if not self.scope.only_bytes:
            self._facts.setdefault(table, []).append(facts_of(table, columns))

    def facts(self) -> Facts:
        """Return all rows by table; of sums one for each thing that is counted."""
        whole = {name: pa.concat_tables(parts) for name, parts in self._facts.items()}
        return whole | {name: summed(name, whole[name]) for name in SUMMED if name in whole}

    def judge(
        self, rule: str, wrong: Flags, file: str, offsets: Words, reason: str, torn: Flags
    ) -> None:
        """Note how many were looked at, and those that are wrong.

        `offsets`: int64[n]. `torn`: bool[n], which of them the next opening mends.
        """
        self.tally.check(rule, len(wrong))
        if wrong.any():
            self.fail(rule, file, offsets[wrong], reason, torn[wrong])

    def fail(self, rule: str, file: str, offsets: Words, reason: str, torn: Flags) -> None:
        """Note failures at these offsets; the lowest are named."""
        for is_torn in (False, True):
            at = np.sort(offsets[torn == is_torn])
            named = [Example(file, each, reason) for each in at[: self.tally.named_max].tolist()]
            self.tally.fail(rule, len(at), named, torn=is_torn)

    def fault(self, rule: str, fault: Fault, *, torn: bool = False) -> None:
        """Note one failure."""
        self.tally.fail(rule, 1, [Example(*fault)], torn=torn)
