"""Plans: any number of splits gives the same rows; what a filter does not want is not opened."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests import naive
from tests.strategies import messages
from tests.table_stores import EVENTFUL, LIVES, live, place, write_log
from timerstore.tables import TABLES, Bounds, read_split, read_table
from timerstore.tables.splits import cut_log, log_end, message_from, plan, plan_log
from timerstore.tables.view import cut_store

SPLIT = [name for name in TABLES if name != "problems"]


@pytest.mark.long
@given(life=LIVES, sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=2))
def test_any_cut_gives_the_same_rows(life: list[Any], sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        live(path, life).close()
        for table in SPLIT:
            whole = read_table(path, table).to_pylist()
            for size in sizes:
                assert read_table(path, table, split_bytes=size).to_pylist() == whole, table


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_golden_cut_small(name: str, golden_unpacked: Callable[[str], Path]) -> None:
    path = str(golden_unpacked(name))
    for table in SPLIT:
        whole = read_table(path, table)
        splits = plan([path], table, split_bytes=10_000)
        assert len(splits) > 3 or table == "checkpoint"
        assert sum(b.num_rows for s in splits for b in read_split(s, whole.column_names)) == len(
            whole
        )


@given(
    found=st.lists(messages(), min_size=2, max_size=8),
    piece=st.integers(1, 3_000),
)
def test_boundaries_without_queues(found: list[naive.Message], piece: int) -> None:
    for message in found:
        message.has_crc = True
        message.topic = message.topic[:120]  # a longer one can name no folder: it is damage
    end = place(found, 4_096)
    begins = {message.offset for message in found} | {4_096 * i for i in range(10)} | {end}
    with tempfile.TemporaryDirectory() as folder:
        data = naive.lay_out(found, 4_096, 8)
        path = write_log(Path(folder) / "s", data, 4_096)
        view = cut_store(str(path))
        assert set(cut_log(view, 0, view.log_stop, piece)[:-1]) <= begins
        assert log_end(view, 0) == end
        assert log_end(view, found[-1].offset) == end
        assert message_from(view, piece, end) in begins


def test_boundaries_with_queues(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    view = cut_store(str(tmp_path / "s"))
    begins = read_table(tmp_path / "s", "messages", ["offset"])["offset"].to_pylist()
    segments = [number * 4_096 for number in view.reader.commitlog.numbers]
    cuts = cut_log(view, 0, view.log_stop, 300)
    assert set(cuts[:-1]) <= {*begins, *segments}
    assert len(cuts) > len(begins) // 4
    assert log_end(view, 0) == view.log_stop


def test_a_plan_of_a_range(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    begins = read_table(tmp_path / "s", "messages", ["offset"])["offset"].to_pylist()
    splits = plan_log(cut_store(str(tmp_path / "s")), "messages", begins[3], begins[20], 500)
    assert len(splits) > 3
    read = [b for split in splits for b in read_split(split, ["offset"])]
    assert [offset for b in read for offset in b["offset"].to_pylist()] == begins[3:20]


# --- what is skipped


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The segments that are mapped from here on."""
    from timerstore.timelog.reading import reader

    seen: list[str] = []
    map_file = reader.map_file
    monkeypatch.setattr(
        reader,
        "map_file",
        lambda path, size, at: seen.append(str(path)) or map_file(path, size, at),
    )
    return seen


def bounds(**numbers: tuple[int, int]) -> Bounds:
    made = Bounds()
    for name, (low, high) in numbers.items():
        made.narrow(name, low, high)
    return made


def test_offsets_skip_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live(tmp_path / "s", [*EVENTFUL, *EVENTFUL]).close()
    whole = read_table(tmp_path / "s", "messages").to_pylist()
    count = len(list((tmp_path / "s" / "commitlog").iterdir()))
    splits = plan(
        [str(tmp_path / "s")], "messages", bounds(offset=(4_096, 8_191)), split_bytes=4_096
    )
    seen = opened(monkeypatch)
    read = [b for split in splits for b in read_split(split, ["offset"])]
    wanted = [row["offset"] for row in whole if 4_096 <= row["offset"] < 8_192]
    assert [offset for b in read for offset in b["offset"].to_pylist()] == wanted
    logs = {each for each in seen if "/commitlog/" in each}
    assert count > 5 and len(logs) <= 2, "the next segment is mapped ahead, no other"


def test_times_skip_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = [("put", [1_000] * 20, "default"), ("advance", 4_000)] * 8
    store = live(tmp_path / "s", life)
    low = store.core.clock.now_ms - 4_000
    store.close()
    path = str(tmp_path / "s")
    for table, name in (("messages", "stored_ms"), ("fired", "fired_ms"), ("fired", "due_ms")):
        whole = [row for row in read_table(path, table).to_pylist() if row[name] >= low]
        late = bounds(**{name: (low, 1 << 62)})
        options = {"split_bytes": 4_096, "clock_slack_ms": 1_000}
        splits = plan([path], table, late, **options)  # type: ignore[arg-type]
        assert len(splits) < len(plan([path], table, split_bytes=4_096)) / 2
        assert read_table(path, table, bounds=late, **options).to_pylist() == whole
        assert read_table(path, table, bounds=late).to_pylist() == whole


def test_due_times_skip_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = live(
        tmp_path / "s",
        [("put", [i * 100 for i in range(1, 150)], "default")] * 3 + [("advance", 1)],
    )
    start = store.core.clock.now_ms - 1
    store.close()
    whole = read_table(tmp_path / "s", "timers").to_pylist()
    due = bounds(due_ms=(start + 5_000, start + 5_400))
    splits = plan([str(tmp_path / "s")], "timers", due)
    seen = opened(monkeypatch)
    read = [b for split in splits for b in read_split(split, ["due_ms"], due)]
    wanted = [row["due_ms"] for row in whole if start + 5_000 <= row["due_ms"] <= start + 5_400]
    assert sorted(ms for b in read for ms in b["due_ms"].to_pylist()) == sorted(wanted)
    logs = {each for each in seen if "/commitlog/" in each}
    assert len(list((tmp_path / "s" / "commitlog").iterdir())) > 20 > len(logs)


def test_columns_that_are_not_asked_for_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timerstore.tables import arrays

    live(tmp_path / "s", EVENTFUL).close()

    def refuse(*args: Any) -> None:
        raise AssertionError("a text was read")

    monkeypatch.setattr(arrays, "texts", refuse)
    monkeypatch.setattr(arrays, "maps", refuse)
    assert read_table(tmp_path / "s", "messages", ["offset", "stored", "crc_ok"]).num_rows > 50
    with pytest.raises(AssertionError, match="a text was read"):
        read_table(tmp_path / "s", "messages", ["key"])


def test_refusals(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    path = str(tmp_path / "s")
    for bad, words in (
        ({"table": "timer"}, "Use messages, queues"),
        ({"table": "units", "partitions": 0}, "Use 1 to"),
        ({"table": "units", "split_bytes": 0}, "Use 1 to"),
        ({"table": "units", "upto": "now"}, 'Use "checkpoint" or "end"'),
    ):
        with pytest.raises(timerstore.InvalidArgumentError, match=words):
            plan([path], **bad)  # type: ignore[arg-type]
    with pytest.raises(timerstore.InvalidArgumentError, match=r"has no column 'x'\. Use offset"):
        read_table(path, "units", ["x"])
    with pytest.raises(timerstore.NotAStoreError):
        read_table(tmp_path / "none", "units")
