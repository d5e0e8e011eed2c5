"""Reading a commit log past what is damaged: the one place that says where it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.blank import BLANK_SEALED, blank_kind
from timerstore.timelog.bytes.message import BAD_CRC, REASONS
from timerstore.timelog.reading import scan
from timerstore.timelog.reading.reader import READ_ROWS, ReadSegments, StoreReader
from timerstore.timelog.reading.scan import LoggedMessages

NO_MESSAGE_REASON: Final = "no message begins at this offset"


class Damage(NamedTuple):
    """A place of the log where no sound message begins."""

    offset: int
    reason: str
    is_message: bool  # a message stands there, though it is not sound
    end: int  # of its segment, or of what is read
    following: int  # where the next sound message up to `end` begins, or −1
    resume: int  # where reading goes on
    framed: LoggedMessages  # the message here, if nothing but its checksum is wrong; else none
    is_empty: bool  # nothing but zeros follows up to `end`

    def told(self, log_stop: int) -> str:
        """Say what is wrong, and how much is lost by it if the log goes on before `log_stop`."""
        if len(self.framed) or (self.end >= log_stop and self.following < 0):
            return self.reason
        return lost_up_to(self.reason, self.offset, self.resume)


def read_past_damage(
    reader: StoreReader, start: int, stop: int, chunk: int = READ_ROWS
) -> Iterator[LoggedMessages | Damage]:
    """Yield the messages that begin in [start, stop), `chunk` at most at once, and what is damaged.

    A message begins at `start`. The arrays are overwritten by the next step. A segment begins with
    a message, so damage ends there at the latest; a segment that is missing is passed over, because
    the reader of the files names it. O(bytes).
    """
    log, offset = reader.commitlog, start
    while offset < stop:
        scanned = reader.scan(offset, stop, chunk=chunk)
        yield from scanned
        offset = scanned.end
        if offset >= stop:
            return
        if scanned.stopped == scan.STOP_UNMAPPED:
            starts = [number * log.segment_bytes for number in log.numbers]
            offset = min((start for start in starts if start > offset), default=stop)
            continue
        damage = _look_at(reader, scanned.end, scanned.stopped == scan.STOP_BAD, scanned.bad, stop)
        yield damage
        offset = damage.resume


def sound_messages(reader: StoreReader, start: int, stop: int) -> Iterator[LoggedMessages]:
    """Yield the sound messages that begin in [start, stop), past what is damaged."""
    for item in read_past_damage(reader, start, stop):
        if not isinstance(item, Damage):
            yield item


def lost_up_to(reason: str, offset: int, following: int) -> str:
    """Say what is lost if no message can be read in [offset, following)."""
    return f"{reason}; {following - offset} bytes up to the next message are lost"


def used_behind_blank(log: ReadSegments, end: int) -> tuple[int, int]:
    """Return the first byte that is no zero behind the blank at `end`, and the end of its segment.

    A segment is closed with a blank, and nothing but zeros behind that; then both are the same.
    """
    stop = (end // log.segment_bytes + 1) * log.segment_bytes
    start = end + fmt.BLANK_BYTES
    if stop - start >= fmt.BLANK_BYTES and blank_kind(log.view(end), 0, end) == BLANK_SEALED:
        start = min(end + fmt.BLANK_CRC_AT + 4, stop)
    return log.next_used(start, stop), stop


def _look_at(reader: StoreReader, offset: int, is_message: bool, bad: int, stop: int) -> Damage:
    log = reader.commitlog
    end = min(stop, (offset // log.segment_bytes + 1) * log.segment_bytes)
    nothing = LoggedMessages.room(0)
    reason = REASONS[bad] if is_message else NO_MESSAGE_REASON
    if not is_message and log.next_used(offset, end) == end:
        return Damage(offset, reason, False, end, -1, end, nothing, is_empty=True)
    framed = read_framed(reader, offset) if is_message and bad == BAD_CRC else nothing
    if len(framed):
        resume = offset + int(framed.size[0])
        following = reader.next_message(resume - 1, end)
    else:
        following = reader.next_message(offset, end)
        resume = end if following < 0 else following
    return Damage(offset, reason, is_message, end, following, resume, framed, is_empty=False)


def read_framed(reader: StoreReader, offset: int) -> LoggedMessages:
    """Read a message whose checksum does not match; nothing if its structure is wrong too."""
    for rows in reader.scan(offset, offset + 1, verify=False):
        rows.status[:] = BAD_CRC
        return rows
    return LoggedMessages.room(0)
