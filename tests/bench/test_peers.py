"""Peers: what makes a round fail, what becomes of rounds, each peer played shortly."""

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peering
import plots
import pytest
import results
from peers import queues, server, tables, workloads
from peers.timers import MissingError, Peer, Timers, check_all_came, now_ms
from peers.workloads import WORKLOADS, Load

pytestmark = pytest.mark.long

EMBEDDED = ("timerstore", "SQLite", "LMDB")
FOUND = Path(peering.__file__).parent / "peers" / "found.json"
SHORT = Load(50, lead_s=1, seconds=0.1)


class InMemory(Timers):
    """A keeper of timers that does what a test says wrong."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.timers = fault, list[tuple[int, bytes]]()
        self.again: tuple[list[bytes], float] | None = None

    def put_rows(self, due_ms: Sequence[int], bodies: Sequence[bytes]) -> Sequence[bytes]:
        self.timers += zip(due_ms, bodies, strict=True)
        if self.fault == "lost":
            self.timers.pop()
        if self.fault == "again":
            self.timers.append(self.timers[0])
        return bodies

    def cancel_rows(self, known: Sequence[bytes]) -> None:
        gone = set(known[1:] if self.fault == "undead" else known)
        self.timers = [each for each in self.timers if each[1] not in gone]

    def take_due(self) -> list[bytes]:
        if self.fault == "cut":
            raise KeyboardInterrupt
        now = now_ms() + (10_000 if self.fault == "early" else 0)
        due = [each for each in self.timers if each[0] <= now]
        self.timers = [each for each in self.timers if each[0] > now]
        if due and self.fault == "again later":
            self.again = [due[0][1]], time.monotonic() + workloads.LOOK_ON_S / 3
        elif self.again and time.monotonic() > self.again[1]:
            return self.again[0]
        return [body for _, body in due]


@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name != "pending"])
def test_a_sound_round(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "OVER_MS", 50)
    monkeypatch.setattr(workloads, "AHEAD_MS", 20)
    seconds = {"seconds": 0.2} if workload == "over_ten" else {}
    found = WORKLOADS[workload](InMemory(), SHORT, **seconds)
    assert found.get("per_second", 1) > 0
    assert found.get("max", 0) >= found.get("p50", 0) >= 0


@pytest.mark.parametrize(
    ("fault", "workload", "said"),
    [
        ("lost", "due_now", "of 50 timers 1 did not come, 0 came again"),
        ("again", "due_now", "of 50 timers 0 did not come, 1 came again"),
        ("again later", "due_now", "0 did not come, 1 came again"),
        ("early", "over_ten", "before its time"),
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


def test_a_number_that_nobody_put_and_puts_that_took_too_long() -> None:
    check_all_came([2, 0, 1], range(3))
    with pytest.raises(AssertionError, match="1 did not come, 0 came again; 1 others came"):
        check_all_came([3, 0, 1], range(3))
    with pytest.raises(AssertionError, match="the putting took longer"):
        workloads.over_ten(InMemory(), Load(50, lead_s=0))


def test_nobody_puts_any_more_when_a_round_is_cut() -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        workloads.lateness(InMemory("cut"), Load(0, seconds=3_600), 1_000)
    assert threading.active_count() == before


def test_the_page_has_the_tables_of_what_was_found(tmp_path: Path) -> None:
    records = results.of(results.read(FOUND), tables.KIND)
    told = tables.tables(records, [peer.name for peer in peering.PEERS])
    before, behind = results.around(plots.PAGE, tables.KIND)
    assert plots.PAGE.read_text() == before + told + behind


def end_with(monkeypatch: pytest.MonkeyPatch, peers: Sequence[Peer], *words: str) -> object:
    """Run `--peers` with these peers; return what it ends with."""
    monkeypatch.setattr(peering, "PEERS", peers)
    monkeypatch.setattr(sys, "argv", ["peering.py", "--rounds", "2", "--scale", "0.0001", *words])
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        peering.main()
    return getattr(ended.value, "code", KeyboardInterrupt)


def peer(name: str, fault: str = "") -> Peer:
    return Peer(name, lambda *_: InMemory(fault))


def rounds_in(file: Path) -> dict[str, int]:
    return {
        name.rpartition("/")[2]: len(each["rounds"]) for name, each in results.read(file).items()
    }


def test_a_peer_that_fails_or_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(path: Path, synced: bool) -> Timers:
        server.program("no-such-server", "its-package")
        raise AssertionError

    file = tmp_path / "found.json"
    peers = [peer("wrong", "again"), Peer("Nobody", none), peer("memory")]
    words = ("--workloads", "due_now", "--json", str(file))
    said = end_with(monkeypatch, peers, *words)
    assert str(said).startswith("wrong fails in due_now: AssertionError: of 100 timers")
    out = capsys.readouterr().out
    assert f"FAULT: {said}" in out
    assert "Nobody is not played: no-such-server is missing: apt install its-package\n" in out
    assert rounds_in(file) == {"memory": 2}
    assert end_with(monkeypatch, peers[1:], *words) == 0


def test_what_a_run_has_found_outlives_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has fewer rounds takes no place of more."""
    opened = list[Path]()

    def cut(path: Path, _: bool) -> InMemory:
        opened.append(path)
        if len(opened) % 3 == 0:
            raise KeyboardInterrupt
        return InMemory()

    file = tmp_path / "found.json"
    words = ("--workloads", "due_now", "--json", str(file), "--folder", str(tmp_path))
    peers = [peer("memory"), Peer("cut", cut)]
    assert end_with(monkeypatch, peers, *words) is KeyboardInterrupt
    assert rounds_in(file) == {"memory": 2, "cut": 1}
    assert end_with(monkeypatch, peers, "--rounds", "3", *words) is KeyboardInterrupt
    first = json.loads(file.read_text())
    assert end_with(monkeypatch, peers[::-1], "--rounds", "9", *words) is KeyboardInterrupt
    assert json.loads(file.read_text())["peers/due_now/memory"] == first["peers/due_now/memory"]
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "0"], "0 is not above 0"),
        (["--scale", "nan"], "nan is not a number above 0"),
        (["--peers", "Nobody"], "no such part: Nobody"),
        (["--fill", "PAGE"], "page.md must have <!-- peers: begin -->"),
        (["--workloads", "", "--json", "FILE"], "is not a file that --json has written"),
        (["--folder", "/no/such/folder"], "No such file or directory: '/no/such/folder/"),
    ],
)
def test_wrong_words_end_before_anything_is_measured(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("page.md", "file.json"):
        (tmp_path / name).touch()
    files = {"PAGE": str(tmp_path / "page.md"), "FILE": str(tmp_path / "file.json")}
    assert end_with(monkeypatch, peering.PEERS, *(files.get(word, word) for word in words)) == 2
    assert said in capsys.readouterr().err


def test_servers_end_with_their_round() -> None:
    with server.none_left():
        started = server.Server(["sleep", "1000"], lambda: True)
    assert not Path(f"/proc/{started.pid}").exists()
    with pytest.raises(MissingError):
        server.program("no-such-server", "its-package")


def test_huey_leaves_the_signals_alone(tmp_path: Path) -> None:
    pytest.importorskip("huey")
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    huey = queues.Huey(tmp_path, False)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    huey.close()


def play(folder: Path, workload: str, peers: Sequence[Peer], **more: Any) -> peering.Run:
    lead_s, run = more.pop("lead_s", 2.0), peering.Run(**more)
    peering.play(run, folder, workload, peers, 1, lead_s)
    return run


@pytest.mark.tier("prove", but=("pending",))
@pytest.mark.parametrize("workload", ["cancel_half", "pending"])
def test_those_in_this_process(workload: str, tmp_path: Path) -> None:
    peers = [peer for peer in peering.PEERS if peer.name in EMBEDDED]
    run = play(tmp_path, workload, peers, scale=0.0002, lead_s=3)
    assert list(run.found) == list(EMBEDDED), run.failures


@pytest.mark.on_disk
@pytest.mark.slow
@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_peer_that_is_there(workload: str, synced: bool, tmp_path: Path) -> None:
    run = play(tmp_path, workload, peering.PEERS, synced=synced, scale=0.002, seconds=1)
    assert run.failures == []
    assert {*EMBEDDED} <= {*run.found}
