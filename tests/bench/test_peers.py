"""Peers: what makes a round fail, what becomes of rounds, each peer played shortly."""

from collections.abc import Sequence
from pathlib import Path

import peering
import pytest
from peers import server, workloads
from peers.embedded import now_ms
from peers.timers import MissingError, Peer, body_of, check_all_came, number_of
from peers.workloads import WORKLOADS, Round, Taken

EMBEDDED = ("timerstore", "SQLite", "LMDB")


class InMemory:
    """A keeper of timers that does what a test says wrong."""

    def __init__(self, fault: str) -> None:
        self.fault, self.timers = fault, list[tuple[int, bytes]]()

    def put_one(self, due_ms: int, body: bytes) -> None:
        self.timers.append((due_ms, body))

    def put_many(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> None:
        self.timers += zip(due_ms, bodies, strict=True)
        if self.fault == "lost":
            self.timers.pop()
        if self.fault == "again":
            self.timers.append(self.timers[0])

    def take_due(self) -> list[bytes]:
        ahead_ms = 10_000 if self.fault == "early" else 0
        now = now_ms() + ahead_ms
        due = [body for due_ms, body in self.timers if due_ms <= now]
        self.timers = [each for each in self.timers if each[0] > now]
        return due

    def close(self) -> None:
        pass


def test_a_body_says_its_number() -> None:
    for size in (16, 100):
        assert number_of(body_of(12_345, size)) == 12_345
        assert len(body_of(12_345, size)) == size


@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name != "lateness"])
def test_a_sound_round(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WORKLOADS[workload](InMemory(""), 50).per_second > 0


@pytest.mark.parametrize(
    ("fault", "workload", "said"),
    [
        ("lost", "due_now", "of 50 timers 1 did not come, 0 came again"),
        ("again", "due_now", "of 50 timers 0 did not come, 1 came again"),
        ("early", "same_ms", "before its time"),
    ],
)
def test_a_round_fails(
    fault: str, workload: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "PATIENCE_S", 0.1)
    monkeypatch.setattr(workloads.time, "sleep", lambda _: None)
    with pytest.raises(AssertionError, match=said):
        WORKLOADS[workload](InMemory(fault), 50)


def test_a_number_that_nobody_put() -> None:
    check_all_came([2, 0, 1], 3)
    with pytest.raises(AssertionError):
        check_all_came([3, 0, 1], 3)


def test_how_late_timers_were() -> None:
    found = workloads.lateness(InMemory(""), 100, seconds=0.2)
    assert list(found.late_ms) == ["p50", "p99", "p99.9", "max"]
    assert 0 <= found.late_ms["p50"] <= found.late_ms["max"]
    with pytest.raises(AssertionError, match="before its time"):
        Taken([now_ms() + 60_000]).note([body_of(0)])


def test_medians_with_their_ranges() -> None:
    found = [
        peering.Found("timerstore", [Round(n) for n in (30_000.0, 90_000.0, 60_000.0)]),
        peering.Found("Redis", [Round(n) for n in (10_000.0, 30_000.0, 20_000.0)]),
    ]
    row = peering.row_of("due_now", True, found)
    assert row.what == "`due_now`, synced"
    assert row.measured.startswith("3 × Redis: timerstore 60 k/s (30 k to 90 k); Redis 20 k/s")
    late = [
        peering.Found("Redis", [Round(1, {"p50": 1, "p99": 9}), Round(1, {"p50": 3, "p99": 5})])
    ]
    assert peering.row_of("lateness", False, late).measured == "Redis p50 2, p99 7 ms"


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def none(path: Path, synced: bool) -> InMemory:
        server.program("no-such-server", "its-package")
        raise AssertionError

    with pytest.raises(MissingError):
        none(tmp_path, False)
    peers = [Peer("Nobody", none, ""), Peer("memory", lambda *_: InMemory(""), "")]
    found = peering.play(tmp_path, "due_now", peers, 100, 2, synced=False)
    assert [each.peer for each in found] == ["memory"]
    assert len(found[0].rounds) == 2
    said = "Nobody is not played: no-such-server is missing: apt install its-package\n"
    assert capsys.readouterr().out == said


def test_those_in_this_process(tmp_path: Path) -> None:
    peers = [peer for peer in peering.PEERS if peer.name in EMBEDDED]
    found = peering.play(tmp_path, "due_now", peers, 500, 1, synced=False)
    assert [each.peer for each in found] == list(EMBEDDED)


@pytest.mark.slow
@pytest.mark.prove
@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_peer_that_is_there(workload: str, synced: bool, tmp_path: Path) -> None:
    found = peering.play(tmp_path, workload, peering.PEERS, 1_000, 1, synced=synced)
    assert {*EMBEDDED} <= {each.peer for each in found}
