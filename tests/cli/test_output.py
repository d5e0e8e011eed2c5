"""What stands on a terminal, narrow or wide."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

import timerstore
from tests.cli.shell import SMALL, Run, put
from timerstore.cli.output import fit
from timerstore.testing.damage import flip_bit
from timerstore.values.amounts import shown_from, shown_span


@given(
    st.dictionaries(
        st.sampled_from(["due", "id", "key", "body", "topic", "tag"]), st.integers(1, 90)
    ),
    st.integers(10, 200),
)
def test_columns_give_way_in_their_order(natural: dict[str, int], total: int) -> None:
    index_of = {name: i for i, name in enumerate(natural)}
    widths = {i: natural[name] for name, i in index_of.items()}
    before = dict(widths)
    fit(widths, index_of, total)
    gaps = 2 * max(0, len(widths) - 1)
    shortened = [name for name in natural if widths[index_of[name]] < natural[name]]
    assert all(0 < widths[i] <= before[i] for i in widths)
    assert not {"due", "tag"} & {*shortened}
    if shortened and sum(widths.values()) + gaps > total:  # all have given what they can
        assert all(widths[index_of[n]] <= 9 for n in ("body", "id", "key") if n in natural)
    if "id" in shortened and "body" in natural:
        assert widths[index_of["body"]] <= 8
    if sum(before.values()) + gaps <= total:
        assert widths == before


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "now"),
        (999, "now"),
        (-999, "now"),
        (1_000, "in 1 s"),
        (59_999, "in 59 s"),
        (-61_000, "1 min ago"),
        (3_599_999, "in 59 min"),
        (3_600_000, "in 1 h"),
        (5_400_000, "in 1 h 30 min"),
        (172_799_999, "in 47 h 59 min"),
        (180_000_000, "in 2 d 2 h"),
        (400 * 86_400_000, "in 400 d"),
    ],
)
def test_times_seen_from_now(ms: int, text: str) -> None:
    assert shown_from(1_800_000_000_000 + ms, 1_800_000_000_000) == text
    assert shown_span(0) == ""


@pytest.mark.slow
@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_terminal_s_width(run: Run, path: Path, columns: int) -> None:
    body = "a body that is rather long \N{CJK UNIFIED IDEOGRAPH-6F22} " * 5
    (id,) = put(path, body.encode(), topic="reminders", delay=timedelta(minutes=59, seconds=59))
    put(path, b"short", topic="bills")
    terminal = {"FORCE_COLOR": "1", "COLUMNS": str(columns)}
    shown = Text.from_ansi(run("pending", path, env=terminal).stdout).plain.splitlines()
    assert max(map(cell_len, shown)) <= columns
    assert [name in shown[0] for name in ("due", "id", "body", "key", "tag")] == [True] * 3 + [
        False
    ] * 2
    assert "in 59 min" in "".join(shown) and "…" in "".join(shown)
    assert (id in "".join(shown)) == (columns >= 80)
    assert ("rather long" in "".join(shown)) == (columns == 200)
    assert id in run("pending", path).stdout


@pytest.mark.slow
def test_as_many_rows_as_fit(run: Run, path: Path) -> None:
    with timerstore.open(path, config=SMALL) as store:
        store.put_many([b"x"] * 100, delay_ms=3_600_000)
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "LINES": "24"}
    result = run("pending", path, env=terminal)
    assert len(result.stdout.splitlines()) == 21
    assert "These are the first 20 of 100 pending timers. --limit shows more." in result.stderr
    assert len(run("pending", path).stdout.splitlines()) == 100
    assert len(run("pending", path, "-n", 30, env=terminal).stdout.splitlines()) == 31


@pytest.mark.slow
def test_damage_is_shown_behind_the_verdict_and_no_more_than_fits(run: Run, path: Path) -> None:
    bodies = [b"body number %04d" % i for i in range(60)]
    put(path, *bodies)
    file = path / "commitlog" / f"{0:020d}"
    for body in bodies[:50]:
        flip_bit(file, body)
    verdict, *places, more = run("verify", path, exits=1).stdout.splitlines()
    count = int(verdict.split(": ")[1].split()[0].replace(",", ""))
    assert verdict.startswith(f"{path}: {count} damaged places in ") and count >= 50
    assert (len(places), more) == (20, f"and {count - 20} more")
    found = run("validate", path, exits=1).stdout.splitlines()
    assert found[0].startswith(f"{path}: ")
    assert not [line for line in found if line.endswith("\tok")]
    everything = run("validate", path, "--all", exits=1).stdout
    assert len(everything.splitlines()) > len(found) and "\tok\n" in everything


@pytest.mark.slow
def test_long_work_shows_a_bar(run: Run, path: Path, tmp_path: Path) -> None:
    put(path, b"x")
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "120"}
    for command in (["verify"], ["validate"], ["export", tmp_path / "x.csv"]):
        told = run(command[0], path, *command[1:], env=terminal).stderr
        assert {"verify": "checking", "export": "exporting"}.get(command[0], "validating") in told
        assert " of " in told or command[0] == "verify"
