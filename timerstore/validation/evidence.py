"""What was found so far, in a form that two findings can be merged in any order."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

EXAMPLES_MAX: Final = 20
"""Places that a rule names one by one, those with the lowest offsets; all are counted."""
PLACES_MAX: Final = 1_000
"""The same if the places are asked for."""


class Example(NamedTuple):
    """One place where a rule fails; `offset` counts bytes over all segments of `file`."""

    file: str
    offset: int
    reason: str


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
    """If it is: what the queries of `timerstore/audit/measures` return, Arrow tables by name."""

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
