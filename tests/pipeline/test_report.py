"""The report: one page that shows what the tables say, without asking anybody."""

import base64
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.pipeline.planted_stores import START_MS, Case
from tests.tiers import some
from timerstore import InvalidArgumentError, pipeline
from timerstore.cli.commands import app
from timerstore.pipeline import charts
from timerstore.pipeline.htmlreport import BARS_MAX, late_by_day, quantiles, read_report

pytestmark = pytest.mark.slow
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
EMPTY = {"meta", "img"}
IMAGE = "data:image/svg+xml;base64,"


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


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Three days of a store, then a peak; beside it a store that is gone, with a wild name."""
    case = Case(tmp_path_factory.mktemp("report"))
    case.put([600 + i for i in range(1_000)], topic="mail")
    case.run_before()
    case.put([*range(600, 1_600), *([900] * 1_200)], topic="campaign")
    stores = {"store": str(case.path), "<gone>": str(case.folder / "gone")}
    pipeline.run(stores, case.out, run="last", **case.options)
    return case


def test_a_page(case: Case) -> None:
    path = pipeline.report(case.out)
    assert path == case.out / "report.html"
    text = path.read_text()
    page = Page(text)
    words = " ".join(page.words)
    assert len(page.asked) == 4  # due times, the wheel, pending, drift
    drawn = [base64.b64decode(each.removeprefix(IMAGE)).decode() for each in page.asked]
    assert all("<svg" in each and "<script" not in each for each in drawn)
    assert "<script" not in text and not re.search(r"https?://", text)
    assert {f"#{each}" for each in page.ids} == set(page.links) and len(page.links) == 2
    assert "<gone>" in words and "NotAStoreError" in words and "<b>" not in text.split("</h1>")[0]
    assert "1,201 timers; 1,201 units of topic campaign" in words
    for title in ("When timers fall due", "Units in the wheel", "Pending, run by run", "Drift"):
        assert title in words
    assert '<h2 id="store-0">&lt;gone&gt;' in text  # the worst comes first
    assert f"All {38 + len(pipeline.DISTRIBUTION_RULES)} rules" in words


def test_another_run(case: Case) -> None:
    path = pipeline.report(case.out, case.folder / "page.html", run="before-1")
    assert "before-1" in path.read_text() and "gone" not in path.read_text()
    data = read_report(case.out, "before-1")
    (store,) = data.stores
    assert (
        len(store.pending) == 2 and sum(sum(each.values()) for each in store.due.values()) == 1_000
    )
    assert store.wheel is not None and int(store.wheel.sum()) == 1_000
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


@given(st.lists(st.integers(0, 99), min_size=1, max_size=50), st.floats(0.01, 1))
def test_quantiles_are_values(values: list[int], part: float) -> None:
    (found,) = quantiles(Counter(values), (part,))
    assert found == sorted(values)[max(1, int(np.ceil(part * len(values)))) - 1]


LAST_MS = 253_402_300_799_000
SPANS_MS = [0, 50_000, 3_600_000, 14 * DAY_MS, 5 * 365 * DAY_MS, LAST_MS - START_MS]


@pytest.mark.parametrize("span_ms", some(SPANS_MS, 3))
def test_charts_of_little_and_of_much(span_ms: int) -> None:
    """A figure is well-formed SVG, and no label of its axis lies on its neighbour."""
    due = {START_MS: {"mail": 1}, START_MS + span_ms: {"mail": 5, "<i>": 50_000}}
    bars = charts.due_bars(due, ["mail", "<i>"], max(60_000, span_ms // BARS_MAX))
    points = [(START_MS, 0.0), (START_MS + span_ms, 1e6)]
    late = charts.lines({"max": points}, is_lateness=True)
    plain = charts.lines({"x": points[:1]}, limits={"warn": 0.25})
    cells = np.zeros((14, 24), np.int64)
    cells[3, 5] = span_ms
    drawn = [bars, late, plain, charts.wheel(cells, START_MS, max(1_000, span_ms // 336))]
    for figure in drawn:
        text = charts.image(figure, "a <label>")
        (source,) = Page(text).asked
        ElementTree.fromstring(base64.b64decode(source.removeprefix(IMAGE)))
        for axes in figure.axes:
            labels = [each for each in axes.get_xticklabels() if each.get_text()]
            boxes = [each.get_window_extent() for each in labels]
            assert all(a.x1 <= b.x0 + 1 for a, b in pairwise(boxes))


@pytest.mark.parametrize("letters", [1, 11, 12, 20, 21, 47, 127])
def test_a_legend_lies_within_its_chart(letters: int) -> None:
    topics = [f"{number}".rjust(letters, "n") for number in range(7)]
    figure = charts.due_bars({START_MS: dict.fromkeys(topics, 1)}, topics, 60_000)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(topics)
    place = legend.get_window_extent()
    assert 0 <= place.x0 and place.x1 <= figure.bbox.x1 and place.y0 >= 0
