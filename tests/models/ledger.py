"""Reads a commit log with the slow twins of `tests/naive.py`, for a ledger of what it says."""

from pathlib import Path

from tests import naive
from tests.models.archive import archive_of
from timerstore.testing.ledger import Ledger


def read_ledger(path: Path, ledger: Ledger | None = None) -> Ledger:
    """Read a store's commit log, with what an `ArchivingDisk` kept; it must reach up to zeros.

    With a `ledger` that was read before, only what came since is read.
    """
    ledger = Ledger() if ledger is None else ledger
    log = _scan(path, ledger.end)
    assert log.damage is None, log.damage
    for message in log.messages:
        ledger.take(message)
    ledger.end = log.end
    return ledger


def read_messages(path: Path) -> list[naive.Message]:
    """All messages of a store's commit log, up to the first that is not whole."""
    return _scan(path, 0).messages


def _scan(path: Path, start: int) -> naive.LogScan:
    folders = [each for each in (archive_of(path), path / "commitlog") if each.is_dir()]
    files = {int(file.name): file for each in folders for file in each.glob("0*")}
    first = max((each for each in files if each <= start), default=0)
    segments = {each: files[each].read_bytes() for each in sorted(files) if each >= first}
    return naive.scan_commit_log(segments, start)
