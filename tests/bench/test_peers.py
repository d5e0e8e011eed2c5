"""Peers: what makes a round fail, what becomes of rounds, each peer played shortly."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import peering
import pytest
from peers import server, tables, workloads
from peers.beanstalkd import BeanstalkdClient
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


class ComesLater(InMemory):
    """It hands out a timer once more, some time after the last one came."""

    def take_due(self) -> list[bytes]:
        if due := super().take_due():
            self.again = due[:1], time.monotonic() + workloads.LOOK_ON_S / 3
        elif hasattr(self, "again") and time.monotonic() > self.again[1]:
            return self.again[0]
        return due


def play(
    folder: Path, workload: str, peers: Sequence[Peer], rounds: int = 1, **more: Any
) -> peering.Run:
    run = peering.Run()
    peering.play(run, folder, workload, peers, rounds, **{"synced": False} | more)
    return run


def test_a_body_says_its_number() -> None:
    for size in (16, 100):
        assert number_of(body_of(12_345, size)) == 12_345
        assert len(body_of(12_345, size)) == size


SHORT = Load(50, lead_s=1, seconds=0.1)
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


def test_one_that_comes_again_later() -> None:
    with pytest.raises(AssertionError, match="0 did not come, 1 came again"):
        workloads.due_now(ComesLater(""), SHORT)


def test_nobody_puts_any_more_when_a_round_is_cut() -> None:
    class Cut(InMemory):
        def take_due(self) -> list[bytes]:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        workloads.lateness(Cut(""), Load(0, seconds=3_600), 1_000)
    assert threading.active_count() == before


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


def played(workload: str, synced: bool = False, /, **rounds: list[float]) -> Played:
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
    order = ("timerstore", "Redis", "huey")
    tables.fill(page, tables.kept(file), order)
    text = page.read_text()
    lines = text.splitlines()
    tables.fill(page, tables.kept(file), order)
    assert page.read_text() == text
    assert lines[1] == "a day."
    assert lines[3].endswith(" 3 rounds, load 1.5 to 1.5.")
    assert lines[5:10] == [
        "|  | one by one | whole lives |",
        "|---|---|---|",
        "| timerstore | – | 60 k |",
        "| Redis | 5 | 20 k |",
        "",
    ]
    assert "| timerstore | – | 60,000 |" in lines
    assert "| Redis | 6 / 6 / 6 |" in lines
    assert "| huey | puts 50% of them |" in lines
    assert "| Redis | 7.00 | 7 / 7 / 7 |" in lines
    assert "| Redis | 100 | 8/s | 0 MB | 0 bytes each | 8.00 s | 8/s |" in lines
    assert any("each put on the disk" in line for line in lines)


def test_a_peer_that_is_played_later_is_added(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    tables.keep(file, played("due_now", timerstore=[1.0], Redis=[2.0]))
    tables.keep(file, played("due_now", Redis=[3.0], huey=[4.0]))
    assert rates_in(file) == [("timerstore", 1.0), ("Redis", 3.0), ("huey", 4.0)]


def rates_in(file: Path) -> list[tuple[str, float]]:
    return [
        (found.peer, found.median("per_second"))
        for each in tables.kept(file)
        for found in each.found
    ]


def test_each_run_says_when_it_was_and_how_busy_the_machine_was(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    tables.keep(file, played("late_1k", timerstore=[1.0], Redis=[2.0]))
    later = replace(played("late_1k", Redis=[3.0]), day="b day", load=9.0, seconds=3.0)
    tables.keep(file, later)
    (days, _, title, *_, ours, redis) = tables.tables(
        tables.kept(file), ("timerstore", "Redis")
    ).splitlines()
    assert days == "a day; b day."
    assert "go on for 3 or 5 s.** Once, load 1.5 to 9.0." in title
    assert (ours, redis) == ("| timerstore | 1 / 1 / 1 |", "| Redis | 3 / 3 / 3 |")


def test_a_run_that_is_cut_takes_no_place_of_more_rounds(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    tables.keep(file, played("due_now", timerstore=[1.0], Redis=[2.0, 2.0]))
    cut = played("due_now", timerstore=[3.0], Redis=[3.0], huey=[4.0])
    tables.keep(file, cut, cut=True)
    assert rates_in(file) == [("Redis", 2.0), ("timerstore", 3.0), ("huey", 4.0)]
    tables.keep(file, cut)
    assert rates_in(file) == [("timerstore", 3.0), ("Redis", 3.0), ("huey", 4.0)]


def end_with(monkeypatch: pytest.MonkeyPatch, peers: Sequence[Peer], *words: str) -> object:
    """Run `--peers` with these peers; return what it ends with."""
    monkeypatch.setattr(peering, "PEERS", peers)
    monkeypatch.setattr(sys, "argv", ["peering.py", "--rounds", "2", "--scale", "0.0001", *words])
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        peering.main()
    return getattr(ended.value, "code", KeyboardInterrupt)


def test_a_peer_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*_: object) -> InMemory:
        return InMemory("again")

    file = tmp_path / "peers.json"
    peers = [Peer("wrong", wrong, ""), Peer("memory", lambda *_: InMemory(""), "")]
    words = ("--workloads", "due_now", "--json", str(file))
    said = end_with(monkeypatch, peers, *words)
    assert str(said).startswith("wrong fails in due_now: AssertionError: of 100 timers")
    assert f"FAULT: {said}" in capsys.readouterr().out
    assert [peer for peer, _ in rates_in(file)] == ["memory"]
    assert end_with(monkeypatch, peers[1:], *words) == 0


def test_what_a_run_has_found_outlives_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[Path]()

    def cut(path: Path, _: bool) -> InMemory:
        opened.append(path)
        if len(opened) == 3:
            raise KeyboardInterrupt
        return InMemory("")

    file = tmp_path / "peers.json"
    peers = [Peer("memory", lambda *_: InMemory(""), ""), Peer("cut", cut, "")]
    words = ("--workloads", "due_now", "--json", str(file), "--folder", str(tmp_path))
    assert end_with(monkeypatch, peers, *words) is KeyboardInterrupt
    (found,) = tables.kept(file)
    assert {each.peer: len(each.rounds) for each in found.found} == {"memory": 2, "cut": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["peers.json"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", "0"], "0 is not above 0"),
        (["--scale", "nan"], "nan is not a number above 0"),
        (["--seconds", "-1"], "-1 is not a number above 0"),
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


def test_huey_leaves_the_signals_alone(tmp_path: Path) -> None:
    pytest.importorskip("huey")
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    huey = jobs.Huey(tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    huey.close()


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def none(path: Path, synced: bool) -> InMemory:
        server.program("no-such-server", "its-package")
        raise AssertionError

    with pytest.raises(MissingError):
        none(tmp_path, False)
    peers = [Peer("Nobody", none, ""), Peer("memory", lambda *_: InMemory(""), "")]
    run = play(tmp_path, "due_now", peers, 2, scale=0.0002)
    assert [(each.peer, each.count) for each in run.found.values()] == [("memory", 100)]
    assert len(run.found["memory"].rounds) == 2
    assert run.failures == []
    said = "Nobody is not played: no-such-server is missing: apt install its-package\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("workload", ["cancel_half", "pending"])
def test_those_in_this_process(workload: str, tmp_path: Path) -> None:
    peers = [peer for peer in peering.PEERS if peer.name in EMBEDDED]
    run = play(tmp_path, workload, peers, scale=0.0002, lead_s=3)
    assert list(run.found) == list(EMBEDDED), run.failures


def test_a_plain_file_takes_what_is_put(tmp_path: Path) -> None:
    (plain,) = [peer for peer in peering.PEERS if peer.name == "a plain file"]
    for synced in (False, True):
        for workload in ("singles", "batches"):
            run = play(tmp_path, workload, [plain], synced=synced, scale=0.001)
            assert run.found["a plain file"].median("per_second") > 0
    assert play(tmp_path, "due_now", [plain]).found == {}


def test_a_server_that_waits_until_its_answers_are_read(tmp_path: Path) -> None:
    """Else both wait to write: it reads no more while nobody takes what it answers."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as file:
            for number, line in enumerate(file):
                file.read(int(line.split()[4]) + 2)
                connection.sendall(b"INSERTED %d\r\n" % number)

    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        client = BeanstalkdClient(path, 0)
        ids = client.put_known([0] * 1_000, [b"x" * 10_000] * 1_000)
        client.close()
        serving.join(10)
    assert ids == [b"%d" % number for number in range(1_000)]


@pytest.mark.slow
@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_peer_that_is_there(workload: str, synced: bool, tmp_path: Path) -> None:
    run = play(tmp_path, workload, peering.PEERS, synced=synced, scale=0.002, seconds=1)
    assert run.failures == []
    assert {*EMBEDDED} <= {*run.found}
