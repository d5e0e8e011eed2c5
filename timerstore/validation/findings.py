"""Where the parts of a validation put what they find."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from timerstore.jit.record import Words
from timerstore.timelog.reading.reader import Fault
from timerstore.validation.evidence import Evidence, Example
from timerstore.validation.notes import COLUMNS, Note, into_buckets
from timerstore.validation.plan import Flags, Scope

__all__ = ["Findings", "Flags", "fail"]


class Findings:
    """A tally, with the notes that are still to meet."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.tally = scope, scope.new_tally()
        self._notes: list[list[Words]] = [[] for _ in COLUMNS]

    def note(self, kind: int, columns: Iterable[Words]) -> None:
        """Keep notes of one kind, given by their columns."""
        rows = np.column_stack([np.asarray(column, np.int64) for column in columns])
        if len(rows):
            self._notes[kind].append(rows)

    def take_notes(self) -> list[Note]:
        """Return all notes by bucket, and forget them."""
        found: list[Note] = []
        for kind, parts in enumerate(self._notes):
            if parts:
                rows = np.concatenate(parts)
                parts.clear()  # the memory of each kind goes before the next one takes as much
                found += into_buckets(kind, rows, self.scope.bucket_count)
        return found

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
