"""What rates of several programs become in a row."""

from pathlib import Path
from typing import Any

import bare
import beside
import lateness
import limit
import numpy as np
import ours
import pytest
import space
import threads

FIGURES: dict[str, Any] = {
    "per_second": 3_000_000,
    "bytes_each": 400,
    "peers": {"SQLite": {"per_second": 150_000, "bytes_each": 2_000}},
}
MISSING = beside.Peer("LMDB", beside.lmdb(1).open, 1, 3)


def test_a_number_has_three_digits() -> None:
    assert [beside.short(n) for n in (12, 9_999, 12_345, 1_234_567)] == [
        *("12", "9,999"),
        *("12.3 k", "1.23 M"),
    ]


def test_a_ratio_reaches_what_is_asked_for() -> None:
    for reach, reached in ((20, True), (20.1, False), (None, None)):
        assert beside.reached(FIGURES, [beside.sqlite(1, reach)]) is reached
    assert beside.reached(FIGURES, [beside.sqlite(1, 20), MISSING]) is None
    assert beside.reach([beside.sqlite(1, 20), MISSING]) == "≥ 20 × SQLite, ≥ 3 × LMDB"


def test_what_is_missing_is_named() -> None:
    words = beside.measured(FIGURES, [beside.sqlite(1, 20), MISSING])
    assert words.startswith("20 × SQLite: 3 M/s, SQLite 150 k/s")
    assert "LMDB not measured" in words


def test_the_first_round_is_left_out() -> None:
    assert beside.median([ours.Rate(9e9, 1), *(ours.Rate(n, 1) for n in (10, 30, 20))]) == 20


def test_the_disks_share() -> None:
    rounds = [
        limit.Beside(1e6, 800, 1e9, 1_200, 400, 1),
        limit.Beside(5e5, 800, 1e9, 1_500, 500, 2),
        limit.Beside(7.5e5, 800, 1e9, 1_400, 450, 0),
    ]
    found = limit.figures(rounds)
    assert [found[name] for name in ("share", "least_share", "most_share", "load")] == [
        *(0.6, 0.4, 0.8),
        2,
    ]
    assert (found["cpu_ns"], found["plain_cpu_ns"]) == (1_400, 450)
    assert "0.60 × the disk's rate" in limit.words(found)
    assert "1,400 ns of processor time each, beside 450" in limit.words(found)
    assert limit.words(None) == ""


@pytest.mark.parametrize(("sync_count", "total_bytes"), [(7, 1_000_003), (None, 1_000)])
def test_all_bytes_are_appended_with_their_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_count: int | None, total_bytes: int
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(bare.os, "fdatasync", lambda fd: sizes.append(bare.os.fstat(fd).st_size))
    monkeypatch.setattr(bare, "SYNC_S", 0)
    monkeypatch.setattr(bare, "LEAST_BYTES", 3 << 20)
    assert min(bare.append(tmp_path / "f", total_bytes, sync_count)) > 0
    if sync_count:
        assert sizes == [round(total_bytes * i / 7) for i in range(1, 8)]
    else:
        assert sizes == [1 << 20, 2 << 20, 3 << 20]
    assert not (tmp_path / "f").exists()


def test_bodies_are_cut() -> None:
    cut = ours.batches([b"x"] * (2 * ours.BATCH_COUNT + 1))
    assert [len(part) for part in cut] == [ours.BATCH_COUNT, ours.BATCH_COUNT, 1]
    assert len(set(ours.make_bodies(50))) == 50


def test_lateness_is_told_in_quantiles() -> None:
    found = lateness.quantiles([np.arange(50), np.arange(50, 101)])
    assert found == lateness.Lateness(50, 99, 100, 101)


def test_space_beyond_what_is_allowed() -> None:
    took = space.Space(100, most_over_bytes=90, most_bytes=310, pending_at_most_bytes=100)
    took.put_bytes, took.copied_bytes, took.appended_bytes = 400, 100, 500
    assert took.is_small
    assert took.copied_share == 0.25
    disk, copied = took.told()
    assert "3.1 × the" in disk
    assert copied == "0.250 ×"
    assert not space.Space(100, most_over_bytes=101).is_small


def test_threads_are_added_up() -> None:
    names = (*threads.SERVICES, "puller", "putter", "flush")
    rounds = [
        threads.Steady(
            per_second=1e6 * n,
            batch_count=100,
            costs={name: threads.Cost(20 * n, 10 * n) for name in names},
            busy=dict.fromkeys(threads.SERVICES, 5),
            faults=0.01 * n,
        )
        for n in (1, 2, 9)
    ]
    rows = {row.what: row for row in threads.steady_rows(rounds)}
    assert rows["putter"].measured.startswith("40 + 20 ns")
    assert rows["all services"].measured == "200 + 100 ns (busy 25)"
    assert rows["all services"].reached is True
    assert rows["whole lives"].measured == "2.00 M/s, 100 a pull"
    assert rows["page faults a timer"].reached is False
