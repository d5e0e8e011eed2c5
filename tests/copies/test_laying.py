"""Laying a log down while it is read."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.copies.test_follow import Followed
from timerstore.copies.catalog import read_catalog
from timerstore.copies.destination import Destination, find_destination
from timerstore.copies.restore import laying
from timerstore.jit.record import Words
from timerstore.services.opening.recover_log import LogScan
from timerstore.timelog.files.names import INT64_MAX
from timerstore.timelog.reading.scan import LoggedMessages

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
    """The last piece waits until messages of the first, which comes just before it, were read."""
    begun, others = threading.Event(), threading.Event()
    take, get, got = LogScan._take, Destination.get, list[str]()

    def taking(self: LogScan, part: LoggedMessages, queue_rows: Words) -> None:
        if len(part):
            begun.set()
        take(self, part, queue_rows)

    def getting(self: Destination, name: str) -> bytes:
        if name == pieces[0]:
            assert others.wait(30)
        if name == pieces[-1]:
            assert begun.wait(30), "nothing was read before"
        data = get(self, name)
        got.extend({name} & {*pieces})
        if len(got) == len(pieces) - 2:
            others.set()
        return data

    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    kept.put(200)
    kept.follower.step()
    pieces = [each.name for each in read_catalog(find_destination(kept.dest)).pieces]
    assert len(pieces) > 5
    monkeypatch.setattr(LogScan, "_take", taking)
    monkeypatch.setattr(Destination, "get", getting)
    assert kept.count_restored() == 200 and got[-2:] == [pieces[0], pieces[-1]]
