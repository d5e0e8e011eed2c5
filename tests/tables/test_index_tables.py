"""The tables units, slots, queues, checkpoint: against the slow twins' reading of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests import naive
from tests.table_stores import EVENTFUL, Folder, live, rows
from timerstore.tables import Bounds, read_table
from timerstore.testing.damage import flip_bit

STORES = ["ours", "pending", "fired", "crashed"]


@pytest.fixture(scope="module")
def stores(
    tmp_path_factory: pytest.TempPathFactory, golden_unpacked: Callable[[str], Path]
) -> Callable[[str], Path]:
    ours = tmp_path_factory.mktemp("tables") / "s"
    live(ours, EVENTFUL).close()
    return lambda name: ours if name == "ours" else golden_unpacked(name)


def segments(folder: Path) -> dict[int, bytes]:
    return {int(file.name): file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("partitions", [None, 13])
def test_units(name: str, partitions: int | None, stores: Callable[[str], Path]) -> None:
    scanned = naive.scan_timer_log(segments(stores(name) / "timerlog"))
    asked = ["slot", "extra", "by_broker", "status"]
    table = read_table(stores(name), "units", partitions=partitions).to_pylist()
    more = read_table(stores(name), "units", asked, partitions=partitions).to_pylist()
    assert [row["offset"] for row in table] == list(scanned.units)
    for row, unit, extra in zip(table, scanned.units.values(), more, strict=True):
        assert row | {"written": None, "due": None} == {
            "offset": row["offset"],
            "prev_pos": unit.prev_pos,
            "magic": unit.magic,
            "is_roll": unit.is_roll,
            "is_hop": bool(unit.magic & 8),
            "is_delete": unit.is_delete,
            "written": None,
            "written_ms": unit.write_ms,
            "due": None,
            "due_ms": unit.time_ms,
            "message_offset": unit.message_offset,
            "message_size": unit.message_bytes,
            "topic_hash": unit.topic_hash,
            "crc_ok": True,
        }
        assert extra["extra"] == unit.extra and extra["by_broker"] == (unit.crc == 0)
        assert extra["status"] == 0


@pytest.mark.parametrize("name", STORES)
def test_slots(
    name: str,
    stores: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    used = naive.used_slots((stores(name) / "timerwheel").read_bytes())
    used = {index: slot for index, slot in used.items() if (slot[0], slot[2]) != (-1, -1)}
    table = read_table(stores(name), "slots", ["index", "slot", "first", "last", "count"])
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        (index, *slot[:4]) for index, slot in used.items()
    ]
    assert read_table(stores(name), "slots", partitions=9).num_rows == len(used)
    if name != "ours" and name != "crashed":
        times = read_table(stores(name), "slots", ["time_ms", "count", "last"]).to_pylist()
        by_time = {row["time_ms"]: row for row in times}
        for line in golden_list(name):
            if line["kind"] == "slot":
                row = by_time[line["time_ms"]]
                assert (row["count"], row["last"]) == (line["count"], line["last"])


def test_slots_of_a_store_that_is_open(tmp_path: Path) -> None:
    """No file has them; they are those from the read cursor on."""
    with live(tmp_path / "s", EVENTFUL) as store:
        store.flush()
        engine = store.core.engine
        wheel = naive.used_slots(engine.wheel.array.slots.tobytes())
        table = read_table(tmp_path / "s", "slots", ["index", "slot", "first", "last", "count"])
        expected = [(i, *slot[:4]) for i, slot in wheel.items() if slot.number >= engine.read_slot]
        assert [tuple(row.values()) for row in table.to_pylist()] == expected != []


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("partitions", [None, 11])
def test_queues(name: str, partitions: int | None, stores: Callable[[str], Path]) -> None:
    expected = []
    for topic in sorted((stores(name) / "consumequeue").iterdir()):
        for queue in sorted(topic.iterdir()):
            for index, entry in naive.scan_queue(segments(queue)).items():
                expected.append((topic.name, int(queue.name), index, *entry))
    table = read_table(stores(name), "queues", partitions=partitions)
    assert rows(table) == sorted(expected, key=repr)


def test_queue_bounds(stores: Callable[[str], Path]) -> None:
    whole = rows(read_table(stores("ours"), "queues"))
    bounds = Bounds()
    bounds.allow("topic", ["default", "none"])
    bounds.narrow("index", 2, 4)
    read = rows(read_table(stores("ours"), "queues", bounds=bounds))
    assert read == [row for row in whole if row[0] == "default" and 2 <= row[2] <= 4]


@pytest.mark.parametrize("name", STORES)
def test_checkpoint(name: str, stores: Callable[[str], Path]) -> None:
    data = (stores(name) / "config" / "timercheck").read_bytes()
    check = naive.decode_timercheck(data)
    found = dict(rows(read_table(stores(name), "checkpoint")))
    assert (found["read_ms"], found["timerlog_flushed"], found["queue_index"]) == check[:3]
    assert found["by_broker"] == (name != "ours")
    assert ("commitlog_flushed" in found) == (name == "ours")
    if name == "ours":
        end = read_table(stores(name), "messages", ["offset", "size"]).to_pylist()[-1]
        assert found["commitlog_flushed"] == end["offset"] + end["size"]
        assert (found["clean"], found["level_1_offset"]) == (1, 0)


# --- damage


def problems(path: Path) -> list[tuple[Any, ...]]:
    return rows(read_table(path, "problems"), "file", "offset", "reason")


def test_units_that_are_damaged(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    units = Folder(tmp_path / "s" / "timerlog")
    units.flip(52 + 20)
    units.write(520, b"\0\0\0\1")
    table = read_table(tmp_path / "s", "units", ["offset", "crc_ok", "status"]).to_pylist()
    bad = [row for row in table if not row["crc_ok"]]
    assert [(row["offset"], row["status"]) for row in bad] == [(52, 2), (520, 1)]
    assert problems(tmp_path / "s") == [
        ("timerlog", 52, "the unit's checksum does not match"),
        ("timerlog", 520, "no unit begins at this offset"),
    ]
    with pytest.raises(timerstore.CorruptStoreError, match="checksum"):
        read_table(tmp_path / "s", "units", failfast=True)


def test_a_slot_in_another_place(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    index = read_table(tmp_path / "s", "slots")["index"][0].as_py()
    wheel = tmp_path / "s" / "timerwheel"
    flip_bit(wheel, 32 * index + 7)
    ((file, offset, reason),) = problems(tmp_path / "s")
    assert (file, offset) == ("timerwheel", 32 * index)
    assert "does not belong here" in reason


def test_an_entry_that_points_nowhere(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    queue = Folder(tmp_path / "s" / "consumequeue" / "default" / "0")
    queue.write(20, (-5).to_bytes(8, "big", signed=True))
    found = problems(tmp_path / "s")
    assert found == [("consumequeue/default/0", 20, "the entry points to no message")]


def test_files_that_are_wrong(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    (tmp_path / "s" / "timerlog" / "strange").write_text("x")
    (tmp_path / "s" / "config" / "timercheck").write_bytes(b"x" * 20)
    assert [problem[0] for problem in problems(tmp_path / "s")] == ["config/timercheck", "timerlog"]


def test_a_log_of_units_with_a_gap(tmp_path: Path) -> None:
    live(tmp_path / "s", EVENTFUL).close()
    whole = read_table(tmp_path / "s", "units").to_pylist()
    sorted((tmp_path / "s" / "timerlog").iterdir())[1].unlink()
    left = read_table(tmp_path / "s", "units").to_pylist()
    assert left == [row for row in whole if not 520 <= row["offset"] < 1040]
