"""Tables that are shown, then put into a page."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import report
from peers import tables
from stress import plays

ROWS = [
    report.Row("a", "≤ 1", "", "0.5", True),
    report.Row("b", "", "2", "3", None),
    report.Row("c", "≤ 1", "", "4", False),
]


def test_a_table_says_what_was_reached() -> None:
    lines = report.markdown("a machine", ROWS).splitlines()
    assert lines[0] == "a machine"
    assert lines[4:] == ["| a | ≤ 1 | 0.5 | reached |", "| b |  | 3 |  |", *lines[6:]]
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


@pytest.mark.parametrize("text", ["", "before\nafter", "B E E", "B B E", "E B", "B"])
def test_a_page_whose_marks_are_wrong_stays_as_it_is(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=r"page\.md must have B and behind it E, each once"):
        report.fill(page, "table", "B", "E")
    assert page.read_text() == text


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '{"a": {"day": 1}}', "null"])
def test_a_file_that_is_broken_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kept.json"
    file.write_text(text)
    for kept in (report.kept, tables.kept, plays.kept):
        with pytest.raises(ValueError, match=r"kept\.json is not a file that --json has written"):
            kept(file)


def test_a_file_is_not_lost_if_it_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    report.write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        report.write_json(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_a_table_of_some_parts_takes_no_place_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    parser = report.new_parser("bench", "What it does.", "small", "--parts", ("put", "get"))
    given = parser.parse_args(["--fill", "page.md"])
    report.check_whole(parser, given, ["get", "put"], ("put", "get"))
    with pytest.raises(SystemExit):
        report.check_whole(parser, given, ["get"], ("put", "get"))
    assert "--fill needs all of put, get" in capsys.readouterr().err


def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = report.new_parser("bench", "What it does.", "small", "--parts", ("put", "get"))
    assert report.chosen(parser, "get", ("put", "get")) == ["get"]
    with pytest.raises(SystemExit):
        report.chosen(parser, "get,got", ("put", "get"))
    assert "no such part: got; use put, get" in capsys.readouterr().err
