"""Looking at a range of the timer log: its units, each with its message."""

from __future__ import annotations

from typing import Final

import numpy as np

from timerstore.offline.audittimers import judge_units
from timerstore.timelog import audit as kernels
from timerstore.timelog.format import UNIT_DELETE, UNIT_ROLL
from timerstore.timelog.jit.record import Words
from timerstore.timelog.unit import UNIT_BAD_CRC, UNIT_BROKEN
from timerstore.validation import notes
from timerstore.validation.findings import Findings

_LOG: Final = "timerlog"
_RULE_OF: Final = {
    UNIT_BROKEN: "unit_sound",
    UNIT_BAD_CRC: "unit_sound",
    kernels.NO_MESSAGE: "unit_message",
    kernels.REMOVED: "unit_message",
    kernels.OTHER_SIZE: "unit_size",
    kernels.OTHER_TOPIC: "unit_topic",
    kernels.OTHER_KIND: "unit_kind",
    kernels.OTHER_TIME: "unit_slot",
    kernels.OTHER_SLOT: "chain",
}
"""Which rule a verdict is about; TOO_EARLY is judged where the unit meets its message's copies."""
_RULES: Final = sorted(set(_RULE_OF.values()))


def look_at_units(findings: Findings, start: int, stop: int) -> None:
    """Look at the units that begin in [start, stop) of the timer log. O(units)."""
    scope, view = findings.scope, findings.scope.view
    stop = min(stop, scope.units_stop)
    parts = judge_units(
        view.reader, start, stop, view.read_slot, view.log_stop, window_ms=scope.window_ms
    )
    for part in parts:
        _take(findings, part, view.read_slot, view.floor, view.reader.precision_ms)


def _take(findings: Findings, part: Words, read_slot: int, floor: int, precision_ms: int) -> None:
    tally, verdicts = findings.tally, part[:, kernels.AUDIT_VERDICT]
    offsets = part[:, kernels.AUDIT_OFFSET]
    tally.counts["units"] += len(part)
    for rule in _RULES:
        tally.check(rule, len(part))
    for verdict in np.unique(verdicts).tolist():
        if verdict in _RULE_OF:
            reason = kernels.VERDICTS[verdict]
            findings.fail(_RULE_OF[verdict], _LOG, offsets[verdicts == verdict], reason)

    sound = ~np.isin(verdicts, (UNIT_BROKEN, UNIT_BAD_CRC))
    slots = part[:, kernels.AUDIT_UNIT_MS] // precision_ms
    is_delete = part[:, kernels.AUDIT_MAGIC] & UNIT_DELETE != 0
    superseded = part[:, kernels.AUDIT_MESSAGE] < floor
    columns = slots, offsets, (part[:, kernels.AUDIT_PREV] << 2) | (superseded << 1) | is_delete
    findings.note(notes.UNIT_NOTE, [column[sound] for column in columns])

    known = sound & (part[:, kernels.AUDIT_QUEUE_INDEX] >= 0)
    word = np.where(slots >= read_slot, notes.LINK_WAITING, 0)
    # What is superseded is moved to a passed slot by a handover.
    early = (verdicts == kernels.TOO_EARLY) & ~superseded
    word |= np.where(early, notes.LINK_EARLY, 0)
    word |= np.where(part[:, kernels.AUDIT_MAGIC] & UNIT_ROLL != 0, notes.LINK_ROLL, 0)
    key = notes.fold_identity(part[:, kernels.AUDIT_HIGH], part[:, kernels.AUDIT_LOW])
    columns = key, part[:, kernels.AUDIT_MESSAGE], (offsets << notes.LINK_SHIFT) | word
    findings.note(notes.LINK_NOTE, [column[known] for column in columns])
