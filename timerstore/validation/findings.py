"""What was found so far: counts and places, which can be merged in any order."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from timerstore.audit.verdicts import Example
from timerstore.jit.record import Words
from timerstore.timelog.reading.reader import Fault
from timerstore.validation.facts import SUMMED, Facts, facts_of, summed
from timerstore.validation.plan import Flags, Scope

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


__all__ = ["Findings", "Flags", "fail"]


def new_tally(scope: Scope) -> Evidence:
    """Return a tally in which nothing was found."""
    return Evidence(named_max=PLACES_MAX if scope.only_bytes else EXAMPLES_MAX)


class Findings:
    """A tally, with the facts that are still to meet."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.tally = scope, new_tally(scope)
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
        """Note failures at these offsets."""
        for is_torn in (False, True):
            fail(self.tally, rule, file, offsets[torn == is_torn], reason, torn=is_torn)

    def fault(self, rule: str, fault: Fault, *, torn: bool = False) -> None:
        """Note one failure."""
        self.tally.fail(rule, 1, [Example(*fault)], torn=torn)


def fail(
    tally: Evidence, rule: str, file: str, offsets: Words, reason: str, *, torn: bool = False
) -> None:
    """Note failures at these offsets; the lowest are named."""
    if len(offsets):
        named = np.sort(offsets)[: tally.named_max].tolist()
        examples = [Example(file, offset, reason) for offset in named]
        tally.fail(rule, len(offsets), examples, torn=torn)
