"""Units as columns, against the twin that reads them one by one."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import table_of
from timerstore.timelog.bytes.unit import NOT_SAID, LoggedUnits
from timerstore.timelog.files.names import segment_name
from timerstore.timelog.files.smallfile import by_path
from timerstore.timelog.reading.reader import ReadSegments
from timerstore.timelog.reading.units import EVERY_UNIT, Wanted, read_units, walk_units

UNITS = st.builds(
    naive.Unit,
    st.sampled_from([52, 52, 52, 51]),
    st.integers(-2, 600),
    st.integers(0, 20),
    st.integers(-1, 1 << 49),
    st.integers(-1, 2**31 - 1),
    st.integers(-(2**62), 2**62),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 1),
    st.integers(0, 2**32 - 1),
)


LOGS = st.lists(st.tuples(UNITS, st.booleans()), max_size=25)
TIMES = st.integers(-10, 1_200) | st.integers(0, 1 << 50)
SAID = st.booleans()
WANTED = st.builds(Wanted, TIMES, SAID, SAID, TIMES, TIMES, SAID)
SIZE = 520


def laid_out(found: list[tuple[naive.Unit, bool]]) -> tuple[dict[int, naive.Unit], bytes, int]:
    """The units by their offsets, three segments that hold them, the log's end."""
    data, units, end = bytearray(SIZE * 3), dict[int, naive.Unit](), 0
    for unit, sealed in found:
        at = naive.next_unit_offset(SIZE, end)
        unit = naive.seal_unit(unit, at) if sealed else unit
        data[at : at + 52] = naive.encode_unit(unit)
        units[at] = unit
        end = at + 52
    return units, bytes(data), end


def is_wanted(unit: naive.Unit, wanted: Wanted) -> bool:
    is_delete, due = bool(unit.magic & 4), naive.due_of_unit(unit)
    if not (wanted.deletes if is_delete else wanted.timers):
        return False
    if unit.time_ms < wanted.from_ms and not (wanted.late and unit.delta_ms < 0):
        return False
    return is_delete or due is None or (due[1] >= wanted.low_ms and due[0] <= wanted.high_ms)


@given(found=LOGS, at_a_time=st.integers(1, 9), wanted=st.just(EVERY_UNIT) | WANTED)
def test_units(found: list[tuple[naive.Unit, bool]], at_a_time: int, wanted: Wanted) -> None:
    expected, data, end = laid_out(found)
    log = table_of({at: data[at : at + SIZE] for at in (0, SIZE, 2 * SIZE)}, SIZE)
    units = LoggedUnits.room(at_a_time)
    state, seen = np.zeros(2, np.int64), list[LoggedUnits]()
    while True:
        count = read_units(log, end, wanted, units, state)
        seen += [units[[i]] for i in range(count)]
        if count < at_a_time:
            break
    chosen = [at for at, unit in expected.items() if is_wanted(unit, wanted)]
    assert [int(each.offset[0]) for each in seen] == chosen
    for each in seen:
        offset = int(each.offset[0])
        unit = expected[offset]
        said = each.prev, each.magic, each.write_ms, each.ms, each.message, each.size
        said += each.topic_hash, each.extra, each.by_broker
        assert [int(column[0]) for column in said] == [
            *(unit.prev_pos, unit.magic, unit.write_ms, unit.time_ms, unit.message_offset),
            *(unit.message_bytes, unit.topic_hash, unit.extra),
            int(unit.crc == 0 and unit.extra == 0),
        ]
        due = naive.due_of_unit(unit)
        is_said = due is not None and due[0] == due[1]
        assert each.due_ms[0] == (due[0] if due and is_said else NOT_SAID)
        try:
            naive.check_unit(unit, offset)
            sound = True
        except naive.DamageError:
            sound = False
        assert (each.status[0] == 0) == sound
    state[:] = 0
    assert read_units(table_of({}, SIZE), end, wanted, units, state) == 0
    assert state.tolist() == [0, int(end > 0)]


@given(found=LOGS, missing=st.integers(0, 3), chunk=st.integers(1, 9))
def test_a_gap_is_passed_over(
    found: list[tuple[naive.Unit, bool]], missing: int, chunk: int
) -> None:
    expected, data, end = laid_out(found)
    with tempfile.TemporaryDirectory() as folder:
        for number in {0, 1, 2} - {missing}:
            path = Path(folder) / segment_name(number * SIZE)
            path.write_bytes(data[number * SIZE : (number + 1) * SIZE])
        log = ReadSegments(Path(folder), "timerlog", SIZE, by_path, open_count_max=2)
        parts = [part.offset.tolist() for part in walk_units(log, 0, end, chunk=chunk)]
    assert all(len(part) <= chunk for part in parts)
    assert [at for part in parts for at in part] == [at for at in expected if at // SIZE != missing]
