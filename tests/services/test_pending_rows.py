"""The rows of an open store's pending timers, against its messages decoded one by one."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import timerstore
from tests.models.ledger import read_messages
from tests.naive_pending import judge
from tests.table_stores import EVENTFUL, LIVES, live
from timerstore.errors import CorruptStoreError
from timerstore.services.looking import read_units
from timerstore.services.looking.instant import capture_instant
from timerstore.services.looking.read_units import read_rows
from timerstore.services.looking.timer_places import DueOrder, join_places
from timerstore.timelog.files.segments import PinnedLog
from timerstore.wheel.judge import IN_MESSAGE


def refuse(offset: int) -> None:
    raise AssertionError(offset)


def listed(store: timerstore.TimerStore) -> list[tuple[int, int, int]]:
    """Offset, due time and body's bytes of each row."""
    engine, found = store.core.engine, list[tuple[int, int, int]]()
    instant = capture_instant(engine)
    places = join_places(DueOrder(engine, instant).all()).in_log_order()
    for rows, parts in read_rows(engine, PinnedLog(engine.commitlog), instant, *places, refuse):
        sizes = parts.body_bytes.tolist()
        due_ms = rows.exact_due_ms.tolist()
        found += zip(rows.offset.tolist(), due_ms, sizes, strict=True)
    return found


@given(life=LIVES)
def test_rows_are_what_the_twin_calls_pending(life: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_units, "CHUNK_MESSAGES", 5)
        store = live(Path(folder) / "s", life)
        engine = store.core.engine
        places = join_places(DueOrder(engine, capture_instant(engine)).all()).in_log_order()
        entries = engine.cancelled.table.reshape(-1, 2)
        cancelled = {(high, low) for high, low in entries.tolist() if high or low}
        cancelled |= {(-1, low) for high, low in cancelled if high == -2}  # held
        messages = {message.offset: message for message in read_messages(store.core.path)}
        expected = []
        for offset, due_ms in zip(*(each.tolist() for each in places), strict=True):
            message, in_level = messages[offset], due_ms != IN_MESSAGE
            verdict = judge(
                message, in_level=in_level, done=set(), cancelled=cancelled, tag=engine.store_tag
            )
            if verdict == "pending":
                due_ms = due_ms if in_level else int(message.properties["TIMER_OUT_MS"])
                expected.append((offset, due_ms, len(message.body)))
        assert listed(store) == expected
        assert len(expected) == store.count()
        store.abandon()


def test_pages_over_a_segment_that_is_missing(tmp_path: Path) -> None:
    """What lies before the log's start was removed; what lies behind it must be there."""
    store = live(tmp_path / "s", [*EVENTFUL, *EVENTFUL])
    log, whole = store.core.engine.commitlog, listed(store)
    first = whole[3][0] // log.segment_bytes + 1
    log.detach_before(first * log.segment_bytes)
    log.remove_detached()
    kept = [each for each in whole if each[0] >= log.start]
    assert 0 < len(kept) < len(whole)
    assert listed(store) == kept
    missing = int(np.array(kept)[:, 0].max()) // log.segment_bytes
    for number in [each for each in log.numbers if each >= missing]:  # up to the log's end
        log.numbers.remove(number)
        log._forget(number)
    with pytest.raises(CorruptStoreError):
        listed(store)
    store.abandon()
