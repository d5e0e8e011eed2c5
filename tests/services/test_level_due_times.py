"""When a broker's delay level messages are due: by their entries, or without any."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.models.ledger import read_messages
from tests.rigs.tablerows import table_from
from tests.services.test_deliver_levels import START_MS, open_store
from timerstore import Config, ManualClock, TimerStore
from timerstore.services.opening.recover_pending import LevelDueTimes
from timerstore.testing.disk import QuietDisk
from timerstore.testing.ledger import LEVEL_TOPIC
from timerstore.timelog.bytes.message import IDENTITY_OURS
from timerstore.timelog.reading.scan import LoggedMessages

STORED_MS = START_MS - 10_000


def row_of(index: int, offset: int, *, ours: bool = False) -> dict[str, int]:
    stored_ms = STORED_MS + index
    row = {"offset": offset, "size": 200, "queue_index": index, "stored_ms": stored_ms}
    row["tags_code"] = stored_ms + 1_000  # as our level says
    if ours:
        row |= {"identity_high": IDENTITY_OURS, "identity_low": offset | 1 << 47}
    return row


def test_entries_say_it_and_what_has_none_waits_as_long_as_the_one_before(tmp_path: Path) -> None:
    store = open_store(tmp_path, ManualClock(START_MS, force=True))
    row = store.core.engine.level_row(1)
    for number in (0, 1):  # three entries each
        entries = store.core.engine.queues.files[row].ensure(number).view
        entries[:] = 0
    view = store.core.engine.queues.files[row].ensure(0).view

    def write(index: int, offset: int, size: int, due_ms: int) -> None:
        entry = np.zeros(1, [("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
        entry[0] = (offset, size, due_ms)
        at = index * 20
        view[at : at + 20] = np.frombuffer(entry.tobytes(), np.uint8)

    write(0, 1_000, 200, STORED_MS + 60_000)
    write(1, 2_000, 200, STORED_MS - 1)  # no level is as short as that
    write(2, 3_000, 199, STORED_MS + 70_000)  # it is another message's
    other = store.core.engine.queues.row(b"t")
    mine = [row_of(i, 1_000 * (i + 1)) for i in range(7)]
    mine += [row_of(7, 9_000, ours=True), row_of(0, 9_500)]
    rows = table_from(LoggedMessages, mine)
    queue_rows = np.array([row] * 8 + [other])
    times = LevelDueTimes(store.core.engine)
    times.keep(rows, queue_rows)
    waits = (rows.tags_code - rows.stored_ms).tolist()
    assert waits == [60_000] * 7 + [1_000, 1_000]
    more = table_from(LoggedMessages, [row_of(8, 9_900)])
    times.keep(more, np.array([row]))
    assert int((more.tags_code - more.stored_ms)[0]) == 60_000
    store.close()


@pytest.mark.slow
def test_without_any_entry_ours_count(
    golden: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = golden("pending")
    shutil.rmtree(path / "consumequeue")
    levels = [message for message in read_messages(path) if message.topic == LEVEL_TOPIC]
    newest = max(message.stored_ms for message in read_messages(path))
    clock = ManualClock(newest, force=True)
    config = Config(delay_levels="3h", durability="process")
    store = TimerStore(path, config=config, clock=clock, disk=QuietDisk())
    assert "Config.delay_levels" in caplog.text
    assert sum(each.lag_count for each in store.stats().levels) == len(levels)
    clock.advance(timedelta(hours=2))
    assert sum(each.lag_count for each in store.stats().levels) == len(levels)
    store.close()
