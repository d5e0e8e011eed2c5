"""Tables that are shown, then put into a page."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import report

ROWS = [
    report.Row("a", "≤ 1", "", "0.5", True),
    report.Row("b", "", "2", "3", None),
    report.Row("c", "≤ 1", "", "4", False),
]


def test_a_table_says_what_was_reached() -> None:
    lines = report.markdown("a machine", ROWS).splitlines()
    assert lines[0] == "a machine"
    assert lines[4:] == ["| a | ≤ 1 |  | 0.5 | reached |", "| b |  | 2 | 3 |  |", *lines[6:]]
    assert lines[6].endswith("| missed |")


def test_a_page_is_filled_between_its_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("before\n<!-- b -->\nold\n<!-- e -->\nafter\n")
    marks = ("<!-- b -->", "<!-- e -->")
    report.deliver(Namespace(json=figures, fill=page), "a machine", ROWS, {"n": 1}, marks)
    text = page.read_text()
    assert text.startswith("before\n<!-- b -->\n")
    assert text.endswith("<!-- e -->\nafter\n")
    assert report.markdown("a machine", ROWS) in text
    assert "old" not in text
    assert json.loads(figures.read_text()) == {"machine": "a machine", "n": 1}
    assert "a machine" in capsys.readouterr().out


def test_parts_are_kept_and_replaced(tmp_path: Path) -> None:
    path, names = tmp_path / "kept.json", ("first", "last")
    assert report.kept(path) == {}
    report.keep(path, {"last": report.Part("b machine; a day", 2.5, ROWS)})
    kept = report.kept(path)
    assert kept["last"].rows == ROWS
    report.keep(path, kept | {"first": report.Part("a machine; a day", 0.5, ROWS[:1])})
    kept = report.kept(path)
    lines = report.table([kept[name] for name in names]).splitlines()
    assert lines[0] == "a machine; a day; b machine; a day; load 0.5 to 2.5 before each row."
    assert [line.split()[1] for line in lines[4:]] == ["a", "a", "b", "c"]


def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = report.new_parser("bench", "What it does.", "small", "--parts", ("put", "get"))
    assert report.chosen(parser, "get", ("put", "get")) == ["get"]
    with pytest.raises(SystemExit):
        report.chosen(parser, "get,got", ("put", "get"))
    assert "no such part: got; use put, get" in capsys.readouterr().err
