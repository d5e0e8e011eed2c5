"""Parts that are measured, kept, shown, put into a page; plots; the verbs of `./run bench`."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bare
import cluster
import harness
import lateness
import machine
import numpy as np
import ours
import plots
import pytest
import rates
import results
import space
import threads
from harness import sized
from results import Row

import timerstore
from tests.small_store import SMALL

pytestmark = pytest.mark.long

BENCH = Path(machine.__file__).parent
RUN = BENCH.with_name("run").read_text()
SCRIPTS = dict(re.findall(r"^ +(--[\w-]+)\) script=(\w+) ;;$", RUN, re.MULTILINE))
for verbs in re.findall(r"^ +(--\w+(?: \| --\w+)+)\) script=\$\{1#--\} ;;$", RUN, re.MULTILINE):
    SCRIPTS |= {verb: verb.removeprefix("--") for verb in verbs.split(" | ")}


def test_the_head_of_run_names_every_verb() -> None:
    told = set(re.findall(r"^#   \./run bench (--[\w-]+)", RUN, re.MULTILINE))
    assert told == set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("verb", SCRIPTS)
def test_a_verb_has_help_of_its_own(verb: str) -> None:
    command = [sys.executable, str(BENCH / f"{SCRIPTS[verb]}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith(f"usage: ./run bench {verb} ")


@dataclass(frozen=True)
class Sizes:
    rounds: int = sized(7, 3)


def one(ground: harness.Ground[Sizes]) -> Iterator[Row]:
    with ground.path() as path:
        assert path.is_dir()
    yield Row("a", "≤ 1", f"{ground.sizes.rounds}", True)


def two(ground: harness.Ground[Sizes]) -> list[Row]:
    return [Row("b", "", "3"), Row("c", "≤ 1", "4", False)]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    harness.main("--some", "What it does.", Sizes, {"one": one, "two": two})


def test_parts_are_kept_and_fill_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, file = tmp_path / "page.md", tmp_path / "kept.json"
    page.write_text("before\n<!-- some: begin -->\nold\n<!-- some: end -->\nafter\n")
    words = ("--warm-gib", "0", "--json", str(file))
    run(monkeypatch, *words, "--parts", "two", "--quick")
    run(monkeypatch, *words, "--parts", "one", "--quick", "--fill", str(page))
    lines = page.read_text().splitlines()
    assert [*lines[:2], *lines[-2:]] == [
        *("before", "<!-- some: begin -->", "<!-- some: end -->", "after")
    ]
    assert re.search(r"; \d+-\d+-\d+; load [\d.]+ to [\d.]+ before each row\.$", lines[2])
    assert lines[4:-2] == [
        "| what | reach | measured |  |",
        "|---|---|---|---|",
        "| a | ≤ 1 | 3 | reached |",
        "| b |  | 3 |  |",
        "| c | ≤ 1 | 4 | missed |",
    ]
    assert "c\n    4\n    ≤ 1 MISSED" in capsys.readouterr().out
    run(monkeypatch, *words, "--parts", "one", "--rounds", "5")
    assert results.read(file)["some/one"]["rows"][0]["measured"] == "5"
    for text in ("", "{", "[1]", '{"a": 1}', '{"a": {"day": 1}}', "null"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"kept\.json is not a file that --json has written"):
            results.read(file)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parts", "one", "--fill", "PAGE"], "--fill needs all of one, two"),
        (["--parts", "three"], "no such part: three; use one, two"),
        (["--parts", ""], "--parts names nothing"),
    ],
)
def test_wrong_words(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "PAGE"
    page.write_text("<!-- some: begin -->\n<!-- some: end -->\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run(monkeypatch, *words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "B E E", "B B E", "E B", "B"])
def test_a_page_whose_marks_are_wrong_stays_as_it_is(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    text = text.replace("B", "<!-- x: begin -->").replace("E", "<!-- x: end -->")
    page.write_text(text)
    with pytest.raises(ValueError, match=r"must have <!-- x: begin --> and behind it"):
        results.fill(page, "x", "table")
    assert page.read_text() == text


def test_a_file_is_not_lost_if_it_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    results.write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        results.write_json(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_each_plot_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of docs/benchmarks.md: it has all that they read."""
    assert plots.number("1.01 M (1–2)") == 1.01e6
    assert plots.number("1,300") == 1_300
    plots.draw(plots.PAGE, tmp_path)
    names = {f"bench-{name}" for name in ("rates", "peers", "lateness", "calls")}
    assert {path.stem for path in tmp_path.glob("*.png")} == names
    assert capsys.readouterr().out == ""
    (tmp_path / "page.md").write_text("nothing")
    plots.draw(tmp_path / "page.md", tmp_path)
    assert "draw_rates: the page has no row" in capsys.readouterr().out


# --- what rates of several programs become in a row

PLAYED = {
    "timerstore": [ours.Rate(n, 400) for n in (1e6, 3e6, 9e6)],
    "SQLite": [ours.Rate(150_000, 2_000)],
}
MISSING = rates.lmdb(1, 3)


def test_rates_beside_peers() -> None:
    """A peer that is missing is named."""
    assert [results.short(n) for n in (12, 12_345, 1_234_567)] == ["12", "12.3 k", "1.23 M"]
    for reach, reached in ((20, True), (20.1, False), (None, None)):
        assert rates.row("", "process", PLAYED, [rates.sqlite(1, reach)]).reached is reached
    row = rates.row("", "process", PLAYED, [rates.sqlite(1, 20), MISSING])
    assert (row.reached, row.reach) == (None, "≥ 20 × SQLite, ≥ 3 × LMDB")
    told = "20 × SQLite: 3 M/s, SQLite 150 k/s; LMDB not measured"
    assert row.measured.startswith(told)


def test_rounds_of_ours_and_of_peers(tmp_path: Path) -> None:
    from sizes import Sizes

    sizes = Sizes(rounds=1, standing=100, sqlite=50, lmdb=50)
    ground = harness.Ground(tmp_path, sizes, 0)
    peers = [rates.sqlite(50), rates.lmdb(50)]
    played = rates.in_turns(ground, ours.put_single, 60, rates.whole_lives, peers)
    assert {name: len(each) for name, each in played.items()} == {
        "timerstore": 1,
        "SQLite": 1,
        "LMDB": 1,
    }
    assert list(tmp_path.iterdir()) == []


def test_the_disks_share() -> None:
    rounds = [
        bare.Beside(1e6, 800, 1e9, 1_200, 400),
        bare.Beside(5e5, 800, 1e9, 1_500, 500),
        bare.Beside(7.5e5, 800, 1e9, 1_400, 450),
    ]
    words, figures = bare.told(rounds)
    assert figures["share"] == 0.6
    assert "0.60 × the disk's rate; 1,400 ns each, a plain write 450" in words


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


def test_lateness_and_space_in_words() -> None:
    found = lateness.quantiles([np.arange(50), np.arange(50, 101)])
    assert found == lateness.Lateness(50, 99, 100, 101)
    took = space.Space(100, most_over_bytes=90, most_bytes=310, pending_at_most_bytes=100)
    took.put_bytes, took.copied_bytes = 400, 100
    disk, copied = took.told()
    assert took.is_small
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


# --- a cluster beside a store

FEW = cluster.Sizes(2, 3, 5)


def test_ways_take_turns_and_the_first_round_is_left_out() -> None:
    played = list[str]()
    ways = {name: partial(played.append, name) for name in ("a", "b")}
    assert harness.in_turns(ways, 2) == {"a": [None, None], "b": [None, None]}
    assert played == [*"ababab"]


def test_a_store_gets_what_is_counted(tmp_path: Path) -> None:
    told = {("cluster", "put"): [90.0, 100.0, 700.0], ("store", "put"): [1_000.0, 200.0, 900.0]}
    assert [(row.what, row.measured) for row in cluster.rows_of(told)] == [
        ("`put`, cluster", "100 a second (90 to 700)"),
        ("`put`, store", "900 a second (200 to 1,000), 9.0 × the cluster's"),
    ]
    with timerstore.open(tmp_path / "s", config=SMALL) as store:
        into: Any = store  # the calls that both have
        for call in cluster.calls_of(into, 4_000_000_000_000, FEW).values():
            assert call() > 0
        assert store.count(topic=cluster.TOPIC) == 8


@pytest.mark.slow
@pytest.mark.prove
def test_a_short_run_beside_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.interop.brokers import NoRocketMQError, classpath

    try:
        classpath()
    except NoRocketMQError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("HOME", str(Path.home()))  # as it was, at the end
    assert len(list(cluster.puts(harness.Ground(tmp_path, FEW, 0)))) == 6
