"""Where a commit log ends that was not closed, though old bytes may lie behind."""

from __future__ import annotations

from timerstore.timelog.files.nonzero import used_before_gap
from timerstore.timelog.files.segmenttable import apron_bytes
from timerstore.timelog.reading.reader import StoreReader


def log_used_end(reader: StoreReader) -> int:
    """Return the offset behind the last byte of the commit log that is of this use of its file.

    Behind the log's end an apron of zeros follows, then anything. O(what was not flushed).
    """
    log, end = reader.commitlog, reader.commitlog.used_end()
    if reader.sealed_from >= end:
        return end
    scanned = reader.scan(max(log.start, reader.sealed_from))
    for _ in scanned:
        pass
    at, quiet = scanned.end, apron_bytes(log.segment_bytes)
    if log.next_used(at, min(end, at + quiet)) >= min(end, at + quiet):
        return at
    while at < end:  # part of what was being appended
        used = used_before_gap(log.map(at // log.segment_bytes)[at % log.segment_bytes :], quiet)
        at += used
        if at % log.segment_bytes or not used:
            break
    return min(at, end)
