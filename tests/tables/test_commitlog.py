"""The tables of the commit log: any log, damaged logs, what the plain reader exports."""

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
from tests.table_stores import (
    EVENTFUL,
    LIVES,
    SECOND,
    Folder,
    exported_rows,
    live,
    place,
    rows,
    write_log,
)
from timerstore.tables import TABLES, read_table

SEGMENT_BYTES = 4_096
EVERYTHING = [column.name for column in TABLES["messages"].columns]


def sized(found: list[naive.Message]) -> list[naive.Message]:
    for message in found:
        message.has_crc = True
        for name in ("TIMER_OUT_MS", "TIMER_DELIVER_MS", "DELAY"):
            if naive.number(message.properties.get(name)) < 0:
                message.properties.pop(name, None)
    return found


LOGS = st.lists(messages(), min_size=1, max_size=6).map(sized)


def expected(message: naive.Message) -> dict[str, Any]:
    crc = naive.encode_message(message)[-11:-1].decode()
    due_ms = naive.number(message.properties.get("TIMER_OUT_MS"))
    return {
        "offset": message.offset,
        "size": message.size_bytes,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "born_ms": message.born_ms,
        "stored_ms": message.stored_ms,
        "key": message.properties.get("KEYS"),
        "tag": message.properties.get("TAGS"),
        "unique_key": message.properties.get("UNIQ_KEY"),
        "properties": {**message.properties, naive.CRC_NAME: crc},
        "crc_ok": True,
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        "system_flag": message.system_flag,
        "body_size": len(message.body),
        "real_topic": message.properties.get("REAL_TOPIC"),
        "out_ms": None if due_ms < 0 else due_ms,
        "is_delete": "TIMER_DEL_UNIQKEY" in message.properties,
        "is_replacement": "TIMER_REPLACES" in message.properties,
        "is_pending": False,
        "body": message.body,
    }


@given(found=LOGS)
def test_messages_of_any_log(found: list[naive.Message]) -> None:
    place(found, SEGMENT_BYTES)
    data = naive.lay_out(found, SEGMENT_BYTES, 8)
    with tempfile.TemporaryDirectory() as folder:
        path = write_log(Path(folder) / "s", data, SEGMENT_BYTES)
        table = read_table(path, "messages", EVERYTHING)
        assert read_table(path, "problems").num_rows == 0
    table.validate(full=True)
    read = table.to_pylist()
    assert len(read) == len(found)
    for row, message in zip(read, found, strict=True):
        row["properties"] = dict(row["properties"])
        wanted = expected(message)
        assert {name: row[name] for name in wanted} == wanted
        assert row["stored"].timestamp() * 1_000 == pytest.approx(message.stored_ms)


@given(life=LIVES, partitions=st.integers(1, 9))
def test_the_same_as_the_plain_reader(life: list[Any], partitions: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        live(path, life).close()
        for table, columns in (
            ("messages", ("offset", "topic", "key", "tag", "unique_key", "queue_offset", "body")),
            ("fired", ("id", "topic", "due_ms", "fired_ms", "lateness_ms", "roll_count", "body")),
        ):
            read = read_table(path, table, columns, partitions=partitions).to_pylist()
            plain = [{name: row[name] for name in columns} for row in exported_rows(path, table)]
            assert read == plain


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pending", "fired", "crashed"])
def test_golden(
    name: str,
    golden_unpacked: Callable[[str], Path],
    golden_list: Callable[[str], list[dict[str, Any]]],
) -> None:
    path, lines = golden_unpacked(name), golden_list(name)
    table = read_table(path, "messages", EVERYTHING)
    by_offset = {row["offset"]: row for row in table.to_pylist()}
    (state,) = [line for line in lines if line["kind"] == "state"]
    last = max(by_offset)
    assert last + by_offset[last]["size"] == state["commit_log_max"]
    for line in lines:
        if line["kind"] in ("timer", "delete", "level", "plain"):
            row = by_offset[line["commit_log_offset"]]
            properties = dict(row["properties"])
            assert properties.items() >= line["properties"].items()
            assert (row["topic"], row["body"].hex()) == (line["stored_topic"], line["body_hex"])
            assert (row["size"], row["queue_offset"]) == (line["bytes"], line["queue_offset"])
            assert row["is_delete"] == (line["kind"] == "delete")
            assert row["unique_key"] == line["unique_key"]
            # A pending timer that was due when it was put stands under its own topic.
            assert row["is_pending"] == (line["stored_topic"] == "rmq_sys_wheel_timer")
    fired = read_table(path, "fired", ["id", "topic", "due_ms", "lateness_ms"]).to_pylist()
    due = {line["unique_key"]: line for line in lines if line["kind"] == "timer"}
    assert len({row["id"] for row in fired}) == len(fired)
    assert all(row["topic"] == due[row["id"]]["topic"] for row in fired)
    assert all(row["lateness_ms"] >= 0 for row in fired)


# --- damage


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "s"
    live(path, EVENTFUL).close()
    return path


@pytest.fixture
def copy(closed: Path, tmp_path: Path) -> Path:
    from tests.sparse_copy import copy_tree

    return copy_tree(closed, tmp_path / "s")


def whole(path: Path) -> list[dict[str, Any]]:
    return read_table(path, "messages", ["offset", "size", "topic", "crc_ok"]).to_pylist()


def problems(path: Path, partitions: int | None = None) -> list[tuple[Any, ...]]:
    table = read_table(path, "problems", partitions=partitions)
    return rows(table, "file", "offset", "reason")


def test_a_checksum_that_does_not_match(copy: Path) -> None:
    before = whole(copy)
    target = before[5]
    Folder(copy / "commitlog").flip(target["offset"] + 90)  # in its body
    target["crc_ok"] = False
    assert whole(copy) == before
    assert problems(copy) == [("commitlog", target["offset"], "the checksum does not match")]
    for table in ("messages", "fired"):
        with pytest.raises(timerstore.CorruptStoreError, match="the checksum does not match"):
            read_table(copy, table, failfast=True)


def test_bytes_that_are_no_message(copy: Path) -> None:
    before = whole(copy)
    target = before[7]
    Folder(copy / "commitlog").write(target["offset"], bytes(target["size"]))
    assert whole(copy) == before[:7] + before[8:]
    (problem,) = problems(copy)
    assert problem[:2] == ("commitlog", target["offset"])
    assert f"{target['size']} bytes up to the next message are lost" in problem[2]


def test_a_size_that_leads_elsewhere(copy: Path) -> None:
    before = whole(copy)
    target = before[3]
    Folder(copy / "commitlog").write(target["offset"], (5_000).to_bytes(4, "big"))
    assert whole(copy) == before[:3] + before[4:]
    (problem,) = problems(copy)
    assert problem[1] == target["offset"]


def test_the_last_message_is_damaged(copy: Path) -> None:
    before = whole(copy)
    target = before[-1]
    Folder(copy / "commitlog").write(target["offset"], bytes(8))
    assert whole(copy) == before[:-1]
    assert [problem[1] for problem in problems(copy)] == [target["offset"]]


def test_a_segment_that_is_missing(copy: Path) -> None:
    before = whole(copy)
    lost = sorted((copy / "commitlog").iterdir())[1]
    lost.unlink()
    start = int(lost.name)
    kept = [row for row in before if not start <= row["offset"] < start + SEGMENT_BYTES]
    assert whole(copy) == kept
    assert ("commitlog", start, "segments are missing from this offset on") in problems(copy)
    with pytest.raises(timerstore.CorruptStoreError, match="segments are missing"):
        read_table(copy, "messages", failfast=True)


@pytest.mark.prove
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=40)),
        min_size=1,
        max_size=4,
    ),
    partitions=st.integers(2, 20),
)
def test_splits_agree_about_damage(
    closed: Path, changes: list[tuple[int, bytes]], partitions: int
) -> None:
    from tests.sparse_copy import copy_tree

    with tempfile.TemporaryDirectory() as folder:
        path = copy_tree(closed, Path(folder) / "s")
        log = Folder(path / "commitlog")
        end = whole(path)[-1]["offset"]
        for at, data in changes:
            at %= end
            log.write(at, data[: log.size - at % log.size])
        read = read_table(path, "messages", EVERYTHING)
        assert read_table(path, "messages", EVERYTHING, partitions=partitions).to_pylist() == (
            read.to_pylist()
        )
        assert problems(path, partitions) == problems(path)
        lost = {row["offset"] for row in whole(closed)} - set(read["offset"].to_pylist())
        assert not lost or problems(path)


# --- live, and killed


def test_a_live_store_up_to_its_checkpoint(tmp_path: Path) -> None:
    store = live(tmp_path / "s", EVENTFUL)
    store.flush()
    flushed = store.core.engine.commitlog.end
    store.put(b"behind the checkpoint", delay=9 * SECOND)
    read = whole(tmp_path / "s")
    assert read[-1]["offset"] + read[-1]["size"] == flushed
    everything = read_table(tmp_path / "s", "messages", ["body"], upto="end")
    assert everything["body"].to_pylist()[-1] == b"behind the checkpoint"
    store.abandon()
    assert whole(tmp_path / "s") == read
    assert problems(tmp_path / "s") == []


def test_a_torn_tail_is_no_problem(tmp_path: Path) -> None:
    store = live(tmp_path / "s", EVENTFUL)
    store.flush()
    store.put(b"torn", topic="second")
    last = store.core.engine.commitlog.end - 30
    store.abandon()
    Folder(tmp_path / "s" / "commitlog").flip(last)
    read = read_table(tmp_path / "s", "messages", ["body"], upto="end")["body"].to_pylist()
    assert read.count(b"torn") == 1, "the put is whole, what it became when it fired is not"
    assert read_table(tmp_path / "s", "problems", upto="end").num_rows == 0
