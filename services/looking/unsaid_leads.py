"""The slots to which units lead that do not say it: their messages do."""

from __future__ import annotations

from timerstore.errors import CorruptStoreError
from timerstore.jit.kernel import kernel_ahead
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.holds import Hold
from timerstore.timelog.bytes.message import GOOD, MessageParts, read_message
from timerstore.timelog.bytes.unit import NOT_SAID, Units
from timerstore.timelog.files.segmenttable import SegmentTable, segment_at


@kernel_ahead
def _say_leads(
    commitlog: SegmentTable, units: Units, precision_ms: int, found: MessageParts, start: int
) -> int:
    """Write the slots of units from `start` on that do not say them; return how far it came.

    `found`: scratch. It stops at a message whose segment is not mapped. O(n).
    """
    for i in range(start, len(units.offset)):
        message = units.message[i]
        if units.leads_to[i] != NOT_SAID or message < 0 or message >= commitlog.end:
            continue
        buf = segment_at(commitlog, message)
        if len(buf) == 0:
            return i
        good = read_message(buf, message % commitlog.segment_bytes, found, False) == GOOD
        if good and found.due_ms >= 0:
            units.leads_to[i] = found.due_ms // precision_ms
    return len(units.offset)


def say_leads(engine: Engine, units: Units, hold: Hold | None = None) -> None:
    """Write the slots of units that do not say them; what cannot be read stays NOT_SAID.

    O(units), and a message read for each of those: a broker's rolls, above all.
    """
    if not (units.leads_to == NOT_SAID).any():
        return
    log, found, at = engine.commitlog, MessageParts(), 0
    while at < len(units):
        with log.reading() as table:
            at = int(_say_leads(table, units, engine.precision_ms, found, at))
        if at < len(units):
            try:
                log.existing(int(units.message[at]) // log.segment_bytes)
            except CorruptStoreError:  # removed just now, or lost
                if hold is not None and units.message[at] >= hold.commitlog:
                    hold.check()
                at += 1
