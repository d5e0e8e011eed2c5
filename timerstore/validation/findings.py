"""Where the parts of a validation put what they find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from timerstore.jit.record import Words
from timerstore.timelog.reading.reader import Fault
from timerstore.validation.evidence import Evidence, Example
from timerstore.validation.facts import SUMMED, Facts, facts_of, summed
from timerstore.validation.plan import Flags, Scope

__all__ = ["Findings", "Flags", "fail"]


class Findings:
    """A tally, with the facts that are still to meet."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.tally = scope, scope.new_tally()
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
