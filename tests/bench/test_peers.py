"""Peers: what makes a round fail, what becomes of rounds, each peer played shortly."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import peering
import pytest
from peers import server, tables, workloads
from peers.embedded import Borrowed, now_ms
from peers.tables import Found, Played
from peers.timers import MissingError, Peer, Timers, body_of, check_all_came, number_of
from peers.usage import usage, with_children
from peers.workloads import WORKLOADS, Load, Taken

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

    def put_known(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
        self.put_many(due_ms, bodies)
        return list(bodies)

    def cancel_many(self, known: Sequence[bytes]) -> None:
        gone = set(known[1:] if self.fault == "undead" else known)
        self.timers = [each for each in self.timers if each[1] not in gone]

    def take_due(self) -> list[bytes]:
        ahead_ms = 10_000 if self.fault == "early" else 0
        now = now_ms() + ahead_ms
        due = [each for each in self.timers if each[0] <= now]
        for each in due:
            self.timers.remove(each)
        return [body for _, body in due]

    def another(self) -> Timers:
        return Borrowed(self)

    def servers(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        pass


def test_a_body_says_its_number() -> None:
    for size in (16, 100):
        assert number_of(body_of(12_345, size)) == 12_345
        assert len(body_of(12_345, size)) == size


SHORT = Load(50, lead_s=0.2, seconds=0.1)
NEVER_LONG = [name for name in WORKLOADS if name not in ("over_ten", "pending")]


@pytest.mark.parametrize("workload", NEVER_LONG)
def test_a_sound_round(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "OVER_MS", 50)
    monkeypatch.setattr(workloads, "AHEAD_MS", 20)
    found = WORKLOADS[workload](InMemory(""), SHORT)
    assert found.get("per_second", 1) > 0
    assert found.get("max", 0) >= found.get("p50", 0) >= 0


@pytest.mark.parametrize(
    ("fault", "workload", "said"),
    [
        ("lost", "due_now", "of 50 timers 1 did not come, 0 came again"),
        ("again", "due_now", "of 50 timers 0 did not come, 1 came again"),
        ("early", "same_ms", "before its time"),
        ("early", "late_1k", "before its time"),
        ("undead", "cancel_half", "0 came again; 1 others came"),
    ],
)
def test_a_round_fails(
    fault: str, workload: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "PATIENCE_S", 0.1 if fault != "undead" else 5)
    with pytest.raises(AssertionError, match=said):
        WORKLOADS[workload](InMemory(fault), SHORT)


def test_a_number_that_nobody_put() -> None:
    check_all_came([2, 0, 1], range(3))
    with pytest.raises(AssertionError, match="1 did not come, 0 came again; 1 others came"):
        check_all_came([3, 0, 1], range(3))


def test_what_falls_due_over_a_while() -> None:
    found = workloads.over_ten(InMemory(""), SHORT, seconds=0.2)
    assert list(found) == ["processor_us", "p50", "p99", "p99.9", "max"]
    assert 0 <= found["p50"] <= found["max"]
    early = Taken([now_ms() + 60_000])
    early.note([body_of(0)])
    with pytest.raises(AssertionError, match="before its time"):
        early.check([0])


def test_the_puts_took_too_long() -> None:
    with pytest.raises(AssertionError, match="the putting took longer"):
        workloads.same_ms(InMemory(""), Load(50, lead_s=0))


def test_servers_are_counted_with_their_children() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        stop_s = time.monotonic() + 30
        while len(found := with_children([parent.pid])) < 2:
            assert time.monotonic() < stop_s
        assert found[0] == parent.pid
        assert usage([parent.pid]).private_bytes > usage(()).private_bytes
        assert os.getpid() not in found
        parent.communicate(b"\n")


def played(workload: str, synced: bool = False, **rounds: list[float]) -> Played:
    found = [
        Found(peer, 100, [dict.fromkeys(workloads.QUANTILES, n) | _others(n) for n in each])
        for peer, each in rounds.items()
    ]
    return Played(workload, synced, "a day", 1.5, 5.0, found)


def _others(n: float) -> dict[str, float]:
    rates = ("per_second", "batches_per_second", "due_now_per_second")
    sizes = ("private_bytes", "disk_bytes", "open_s", "processor_us")
    return dict.fromkeys((*rates, *sizes), n) | {"share_put": 1.0 if n < 1e6 else 0.5}


def test_tables_of_what_was_found(tmp_path: Path) -> None:
    file, page = tmp_path / "peers.json", tmp_path / "page.md"
    page.write_text("<!-- peers: begin -->\nold\n<!-- peers: end -->\n")
    rates = {"timerstore": [30_000.0, 90_000.0, 60_000.0], "Redis": [10_000.0, 30_000.0, 20_000.0]}
    tables.keep(file, played("due_now", timerstore=[1.0]))  # it is played anew
    tables.keep(file, played("due_now", **rates))
    tables.keep(file, played("due_now", True, **rates))
    tables.keep(file, played("singles", Redis=[5.0, 5.0, 5.0]))
    tables.keep(file, played("late_1k", Redis=[5.0, 6.0, 7.0], huey=[2e6]))
    tables.keep(file, played("over_ten", Redis=[7.0]))
    tables.keep(file, played("pending", Redis=[8.0]))
    tables.fill(page, tables.kept(file))
    lines = page.read_text().splitlines()
    assert lines[1].endswith("a day; 3 rounds, load 1.5 to 1.5.")
    assert lines[3:8] == [
        "|  | one by one | whole lives |",
        "|---|---|---|",
        "| Redis | 5 (5–5) | 20 k (10 k–30 k) |",
        "| timerstore | – | 60 k (30 k–90 k) |",
        "",
    ]
    assert "| timerstore | – | 60,000 (30,000–90,000) |" in lines
    assert "| Redis | 6 / 6 / 6 / 6 |" in lines
    assert "| huey | puts 50% of them |" in lines
    assert "| Redis | 100 | 7.00 | 7 / 7 / 7 / 7 |" in lines
    assert "| Redis | 100 | 8/s | 0 MB | 0 bytes each | 8.00 s | 8/s | 8/s |" in lines
    assert any("each put on the disk" in line for line in lines)


def test_a_peer_that_is_played_later_is_added(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    tables.keep(file, played("due_now", timerstore=[1.0], Redis=[2.0]))
    tables.keep(file, played("due_now", Redis=[3.0], huey=[4.0]))
    (only,) = tables.kept(file)
    assert [(each.peer, each.median("per_second")) for each in only.found] == [
        ("timerstore", 1.0),
        ("Redis", 3.0),
        ("huey", 4.0),
    ]


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def none(path: Path, synced: bool) -> InMemory:
        server.program("no-such-server", "its-package")
        raise AssertionError

    with pytest.raises(MissingError):
        none(tmp_path, False)
    peers = [Peer("Nobody", none, ""), Peer("memory", lambda *_: InMemory(""), "")]
    found = peering.play(tmp_path, "due_now", peers, 2, synced=False, scale=0.0002)
    assert [(each.peer, each.count) for each in found] == [("memory", 100)]
    assert len(found[0].rounds) == 2
    said = "Nobody is not played: no-such-server is missing: apt install its-package\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("workload", ["cancel_half", "pending"])
def test_those_in_this_process(workload: str, tmp_path: Path) -> None:
    peers = [peer for peer in peering.PEERS if peer.name in EMBEDDED]
    found = peering.play(tmp_path, workload, peers, 1, synced=False, scale=0.0002, lead_s=0.7)
    assert [each.peer for each in found] == list(EMBEDDED)


def test_a_plain_file_takes_what_is_put(tmp_path: Path) -> None:
    (plain,) = [peer for peer in peering.PEERS if peer.name == "a plain file"]
    for synced in (False, True):
        for workload in ("singles", "batches"):
            (found,) = peering.play(tmp_path, workload, [plain], 1, synced=synced, scale=0.001)
            assert found.median("per_second") > 0
    assert peering.play(tmp_path, "due_now", [plain], 1, synced=False) == []


@pytest.mark.slow
@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_peer_that_is_there(workload: str, synced: bool, tmp_path: Path) -> None:
    found = peering.play(
        tmp_path, workload, peering.PEERS, 1, synced=synced, scale=0.002, seconds=1
    )
    assert {*EMBEDDED} <= {each.peer for each in found}
