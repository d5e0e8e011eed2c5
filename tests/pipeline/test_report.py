"""The report: one page that shows what the tables say, without asking anybody."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.pipeline.planted_stores import START_MS, Case
from timerstore import InvalidArgumentError, pipeline
from timerstore.cli.commands import app
from timerstore.pipeline.reportdata import late_by_day, read_report
from timerstore.pipeline.svgcharts import heat_map, lines, round_steps, short_number, stacked_bars

pytestmark = pytest.mark.slow
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
EMPTY = {"meta", "line", "polyline"}


class Page(HTMLParser):
    """Checks that what is opened is closed; collects what is asked of others, ids, texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in EMPTY:
            self.open.append(tag)
        given = dict(attrs)
        self.asked += [given[name] or "" for name in ("src", "data") if name in given]
        self.ids |= {given["id"] or ""} if "id" in given else set()
        if "href" in given:
            self.links.append(given["href"] or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in EMPTY

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """Three days of a store, then a peak; beside it a store that is gone, with a wild name."""
    case = Case(tmp_path)
    case.put([600 + i for i in range(1_000)], topic="mail")
    case.run_before()
    case.put([*range(600, 1_600), *([900] * 1_200)], topic="campaign")
    stores = {"store": str(case.path), "<gone>": str(tmp_path / "gone")}
    pipeline.run(stores, case.out, run="last", **case.options)
    return case


def test_a_page(case: Case) -> None:
    path = pipeline.report(case.out)
    assert path == case.out / "report.html"
    text = path.read_text()
    page = Page(text)
    words = " ".join(page.words)
    assert page.asked == [] and "<script" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert {f"#{each}" for each in page.ids} == set(page.links) and len(page.links) == 2
    assert "<gone>" in words and "NotAStoreError" in words and "<b>" not in text.split("</h1>")[0]
    assert "1,201 timers; 1,201 units of topic campaign" in words
    for title in ("When timers fall due", "Units in the wheel", "Pending, run by run", "Drift"):
        assert title in words
    assert '<h2 id="store-0">&lt;gone&gt;' in text  # the worst comes first
    assert text.count("<svg") == 5  # due times, two turns, pending, drift
    assert f"All {38 + len(pipeline.DISTRIBUTION_RULES)} rules" in words


def test_another_run(case: Case) -> None:
    path = pipeline.report(case.out, case.folder / "page.html", run="before-1")
    assert "before-1" in path.read_text() and "gone" not in path.read_text()
    data = read_report(case.out, "before-1")
    (store,) = data.stores
    assert (
        len(store.pending) == 2 and sum(sum(each.values()) for each in store.due.values()) == 1_000
    )
    assert sum(int(turn.sum()) for turn in store.turns) == 1_000
    for wrong in ("no", "before"):
        with pytest.raises(InvalidArgumentError, match="Pass the folder"):
            pipeline.report(case.out, run=wrong)
    with pytest.raises(InvalidArgumentError, match="has no run"):
        pipeline.report(case.folder / "nothing")


def test_the_command(case: Case) -> None:
    page = case.folder / "page.html"
    done = CliRunner().invoke(app, ["pipeline", "report", str(case.out), str(page)])
    assert (done.exit_code, done.stdout) == (0, f"{page}\n") and page.exists()
    done = CliRunner().invoke(app, ["pipeline", "report", str(case.folder / "nothing"), "--json"])
    assert done.exit_code == 2


def late(run: str, hour: int, late_ms: int, fired: int) -> dict[str, Any]:
    return {"run": run, "hour_ms": hour * HOUR_MS, "late_ms": late_ms, "fired": fired}


def test_an_hour_is_taken_from_one_run() -> None:
    """From the first that was behind its end; of an hour that goes on from the last."""
    rows = [late("a", 0, 5, 10), late("b", 0, 5, 7), late("b", 24, 9, 1), late("c", 24, 9, 3)]
    when = {"a": HOUR_MS, "b": 2 * HOUR_MS, "c": 24 * HOUR_MS + 5}
    found = late_by_day(rows, when)
    assert found["max"] == [(0, 5.0), (DAY_MS, 9.0)]
    rows += [late("a", 0, 900, 1), late("b", 0, 77_000, 5)]
    assert late_by_day(rows, when)["max"] == [(0, 900.0), (DAY_MS, 9.0)]
    assert late_by_day([], {}) == {}


def test_charts_of_little() -> None:
    one = stacked_bars({START_MS: {"mail": 1}}, ["mail"], 60_000, "one")
    assert one.count("<rect") == 1 and Page(one)
    assert Page(lines({"x": [(START_MS, 0.0)]}, "a point", limits={"warn": 0.25}))
    assert Page(lines({"x": [(START_MS, 0.0), (START_MS + 5, 1e6)]}, "late", is_lateness=True))
    cells = heat_map([[0, 5]], [""], ["", "a"], [["none", "five"]], high=5, label="heat")
    assert Page(cells) and cells.count("<rect") == 2


@pytest.mark.parametrize("high", [1, 3, 7, 10, 99, 12_345, 0.3])
def test_steps_are_round(high: float) -> None:
    steps = round_steps(high)
    assert steps[0] == 0 and 3 <= len(steps) <= 6 and steps[-1] <= high * 1.0001
    assert short_number(0) == "0" and short_number(2_500_000_000) == "2.5 G"
