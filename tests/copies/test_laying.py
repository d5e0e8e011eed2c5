"""Laying a log down while it is read."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.copies.test_follow import Followed
from tests.rigs.objects import watched_filesystem
from timerstore.copies.restore import laying
from timerstore.services.opening.recover_log import LogScan
from timerstore.timelog.files.names import INT64_MAX

pytestmark = pytest.mark.timeout(60)


class FailedError(Exception):
    """The laying, or who reads, has failed."""


def test_a_reader_waits_for_what_it_needs() -> None:
    go_on = threading.Event()

    def lay(reached: Callable[[int], None]) -> None:
        reached(10)
        go_on.wait(30)
        reached(20)

    with laying(lay) as laid:
        assert laid.wait(-1) == laid.wait(9) == 10
        go_on.set()
        assert laid.wait(10) in (20, INT64_MAX)
        assert laid.wait(20) == INT64_MAX


def test_what_ends_the_laying_is_raised_to_who_waits() -> None:
    def lay(reached: Callable[[int], None]) -> None:
        reached(10)
        raise FailedError

    for offset in (-1, 10):  # also if nobody waits for more
        with pytest.raises(FailedError), laying(lay) as laid:
            laid.wait(offset)


def test_a_reader_that_fails_ends_the_laying() -> None:
    steps = list[int]()

    def lay(reached: Callable[[int], None]) -> None:
        for step in range(1_000_000):
            reached(step)
            steps.append(step)

    with pytest.raises(FailedError), laying(lay):
        raise FailedError
    assert len(steps) < 1_000_000


def test_a_restore_reads_the_log_while_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last piece comes only when messages of the first ones were read."""
    begun, got = threading.Event(), list[str]()
    take = LogScan._take

    def taking(self: LogScan, part: object, queue_rows: object) -> None:
        if len(part):  # type: ignore[arg-type]
            begun.set()
        take(self, part, queue_rows)  # type: ignore[arg-type]

    def watch(what: str, path: str) -> None:
        if what == "get" and "log/" in path:
            got.append(path)
            if path == last:
                assert begun.wait(30), "nothing was read before"

    last = ""
    kept = Followed(tmp_path, watched_filesystem(tmp_path / "objects", watch))
    kept.put(200)
    kept.follower.step()
    assert kept.count_restored() == 200
    last, count = max(got), len(got)
    assert count > 5
    monkeypatch.setattr(LogScan, "_take", taking)
    assert kept.count_restored() == 200 and begun.is_set()
    kept.follower.close()
    kept.store.close()
