"""Plots of the page of figures: what they read of its tables, that each is drawn."""

from pathlib import Path

import plots
import pytest

PAGE = """
**Late by ms, median / p99.** a day

|  | 1,000 a second | 10,000 a second |
|---|---|---|
| timerstore | 0 / 1 / 2 / 3 | 0 / 1 / 9 / 9 |
| Redis | 1 / 12 / 1,300 / 2,000 | – |
| huey | puts 50% of them | – |

**Processor time of all processes, µs for each: median (range).** a day

|  | whole lives |
|---|---|
| timerstore | 1.5 (1.4–2.0) |
| Redis | 1,234 |
| a plain file | – |

| what | reach | measured | |
|---|---|---|---|
| `put_many` from a list of bytes | | 9 ×: 3.72 M/s, SQLite 162 k/s, LMDB 335 k/s | |
| whole life, pulled by columns | | 9 ×: 1.01 M/s, SQLite 78.9 k/s, LMDB 486 k/s | |
| lateness in the handler, median / p99, 250 jobs a second | | timerstore 0.3 / 0.8 ms | |
| `put(at_ms=)` | | 1.60 µs, SQLite 24.8 | |
| `get` | | 5.28 µs, SQLite 7.7 | |
| `cancel` | | 4.60 µs, SQLite 50.5 | |
| `reschedule` | | 9.04 µs, SQLite 61.9 | |
"""


def test_a_column_of_a_table() -> None:
    found = plots.column(PAGE, "Late by ms", "1,000 a second")
    assert found["Redis"] == "1 / 12 / 1,300 / 2,000"
    assert list(found) == ["timerstore", "Redis", "huey"]
    with pytest.raises(LookupError, match="no column"):
        plots.column(PAGE, "Late by ms", "5 a second")
    with pytest.raises(LookupError, match="no table"):
        plots.column(PAGE, "Early", "5 a second")


def test_numbers_as_tables_have_them() -> None:
    assert plots.number("1.01 M (1–2)") == 1.01e6
    assert plots.number("1,300") == 1_300
    rates = plots.rates(PAGE, "whole life, pulled by columns")
    assert rates == {"timerstore": 1.01e6, "SQLite": 78_900, "LMDB": 486_000}


def test_each_plot_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    plots.draw(page, tmp_path)
    names = {f"bench-{name}" for name in ("rates", "peers", "lateness", "calls")}
    assert {path.stem for path in tmp_path.glob("*.png")} == names
    assert capsys.readouterr().out == ""


def test_a_page_without_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.md").write_text("nothing")
    plots.draw(tmp_path / "page.md", tmp_path)
    assert "draw_rates: the page has no row" in capsys.readouterr().out
