"""Where the parts of a validation put what they find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from timerstore.timelog.jit.record import Words
from timerstore.timelog.reader import Fault
from timerstore.validation.notes import COLUMNS, Note, into_buckets
from timerstore.validation.plan import Scope
from timerstore.validation.tally import EXAMPLES_MAX, Example, Tally

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Findings:
    """A tally, with the notes that are still to meet."""

    def __init__(self, scope: Scope) -> None:
        """Begin with nothing found."""
        self.scope, self.tally = scope, Tally()
        self._notes: list[list[Words]] = [[] for _ in COLUMNS]

    def note(self, kind: int, columns: Iterable[Words]) -> None:
        """Keep notes of one kind, given by their columns."""
        rows = np.column_stack([np.asarray(column, np.int64) for column in columns])
        if len(rows):
            self._notes[kind].append(rows)

    def take_notes(self) -> list[Note]:
        """Return all notes by bucket, and forget them."""
        notes = [
            note
            for kind, parts in enumerate(self._notes)
            if parts
            for note in into_buckets(kind, np.concatenate(parts), self.scope.bucket_count)
        ]
        self._notes = [[] for _ in COLUMNS]
        return notes

    def judge(self, rule: str, wrong: Flags, file: str, offsets: Words, reason: str) -> None:
        """Note how many were looked at, and those that are wrong; `offsets`: int64[n]."""
        self.tally.check(rule, len(wrong))
        self.fail(rule, file, offsets[wrong], reason)

    def fail(self, rule: str, file: str, offsets: Words, reason: str) -> None:
        """Note failures at these offsets."""
        fail(self.tally, rule, file, offsets, reason)

    def fault(self, rule: str, fault: Fault) -> None:
        """Note one failure."""
        self.tally.fail(rule, 1, [Example(*fault)])


def fail(tally: Tally, rule: str, file: str, offsets: Words, reason: str) -> None:
    """Note failures at these offsets; the lowest are named."""
    if len(offsets):
        named = np.sort(offsets)[:EXAMPLES_MAX].tolist()
        tally.fail(rule, len(offsets), [Example(file, offset, reason) for offset in named])
