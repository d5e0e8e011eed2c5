"""Files that were cut or lost: what was flushed must be there with its full length.

A file that is shorter, and all zeros, was about to be made when a process ended; that holds only
if nothing of it was ever made durable. The commit log is the truth, so what it lost is an error,
and nothing is changed. Timer log and consume queues are made anew from it (`rebuild.py`).
"""

from __future__ import annotations

from timerstore.errors import CorruptStoreError
from timerstore.services.engine.engine import Engine
from timerstore.services.engine.rebuild import QUEUES, TIMERS
from timerstore.timelog.files.checkpoint import TimerCheckpoint


def check_files(
    engine: Engine,
    checkpoint: TimerCheckpoint | None,
    rebuilt: list[str],
    *,
    is_live: bool = False,
) -> None:
    """Raise CorruptStoreError if the commit log was cut, or an index that is not made anew.

    A broker's checkpoint, or none, does not say how much of the log was flushed: then only the last
    file can have been about to be made. How much of a queue was flushed nobody says. While another
    process may remove files, it is not asked whether some are missing before the first.
    """
    log, timerlog = engine.commitlog, engine.timerlog
    first = None if checkpoint is None or is_live else checkpoint.lost_from(log.start)
    if first is not None:
        offset = first // log.segment_bytes * log.segment_bytes
        raise CorruptStoreError(log.name, offset, "this segment is missing")
    log.flushed_end = max(log.start, log.files_end - log.segment_bytes)
    if checkpoint is not None and not checkpoint.by_broker:
        log.flushed_end = log.durable_end = checkpoint.commitlog_flushed
    lost = log.find_lost()
    if lost is not None:
        raise lost
    if checkpoint is not None and TIMERS not in rebuilt:
        timerlog.flushed_end = checkpoint.timerlog_flushed
        if not checkpoint.by_broker:
            timerlog.durable_end = checkpoint.timerlog_flushed
        lost = timerlog.find_lost()
    if lost is None and QUEUES not in rebuilt:
        for file in engine.queues.files:  # was it lost, its entries are missed
            file.forget_unmade()
        found = (file.find_lost(whole=True) for file in engine.queues.files)
        lost = next((each for each in found if each is not None), None)
    if lost is not None:
        raise lost
