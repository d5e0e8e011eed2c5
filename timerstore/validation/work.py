"""The work of a validation, in two rounds that any number of processes can share.

In the first round each range of the store is looked at by itself. In the second each bucket of
notes is judged by itself. `plain.py` does both in one process, `timerstore.spark` on a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from timerstore.jit.record import Words
from timerstore.tables.splits import FILES, LOG, UNITS, WHEEL, Range
from timerstore.validation import notes
from timerstore.validation.entries import look_at_entries
from timerstore.validation.evidence import Evidence
from timerstore.validation.files import look_at_files
from timerstore.validation.findings import Findings
from timerstore.validation.loggedunits import look_at_units
from timerstore.validation.meet_slots import SlotMeeting
from timerstore.validation.meet_timers import TimerMeeting
from timerstore.validation.messages import look_at_messages
from timerstore.validation.notes import Note
from timerstore.validation.plan import Scope
from timerstore.validation.usedslots import look_at_slots


def look_at(scope: Scope, ranges: tuple[Range, ...]) -> tuple[Evidence, list[Note]]:
    """Look at ranges of a store; return what was found, and the notes that are to meet others."""
    findings = Findings(scope)
    for part, start, stop in ranges:
        if part == LOG:
            look_at_messages(findings, start, stop)
        elif part == UNITS:
            look_at_units(findings, start, stop)
        elif part == WHEEL:
            look_at_slots(findings, start, stop)
        elif part == FILES:
            look_at_files(findings)
        else:
            look_at_entries(findings, part, start, stop)
    reader = scope.view.reader
    for segments in (reader.commitlog, reader.timerlog, *reader.queues.values()):
        segments.unmap()
    return findings.tally, findings.take_notes()


def judge_bucket(scope: Scope, bucket: int, rows: Mapping[int, list[Words]]) -> Evidence:
    """Judge all notes of one bucket, given by kind."""
    tally = scope.new_tally()
    joined = [
        np.concatenate([np.zeros((0, columns), np.int64), *rows.get(kind, [])])
        for kind, columns in enumerate(notes.COLUMNS)
    ]
    if bucket < scope.bucket_count:
        meeting = SlotMeeting(scope, joined[notes.UNIT_NOTE], joined[notes.SLOT_NOTE], tally)
        meeting.judge()
        if tally.measured is not None:
            meeting.measure(joined[notes.LOAD_NOTE], joined[notes.EXPECTED_NOTE], tally.measured)
    else:
        messages = joined[notes.TIMER_NOTE], joined[notes.COPY_NOTE]
        TimerMeeting(scope, *messages, joined[notes.LINK_NOTE], tally).judge()
    return tally
