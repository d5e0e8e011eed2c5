"""Units against the slow twin, then with bytes that are no units."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests import naive
from tests.buffers import Guarded
from tests.kernels import kernel
from timerstore.timelog.bytes.unit import (
    NOT_SAID,
    UNIT_BAD_CRC,
    UNIT_BROKEN,
    UNIT_GOOD,
    NewUnit,
    check_unit,
    is_broker_unit,
    leads_to,
    next_unit_offset,
    put_timerlog_blank,
    put_unit,
    unit_ms,
)

GUARDED = Guarded(4096)
TIMES = st.integers(0, 253_402_300_799_999)


@kernel
def _put(buf: Any, at: int, values: Any) -> None:
    unit = NewUnit(
        *(values[1], values[2], values[3], values[4], values[5]),
        *(values[6], values[7], values[8], values[9]),
    )
    put_unit(buf, at, values[0], unit)


@kernel
def _check(buf: Any, at: int, offset: int, out: Any) -> None:
    out[0] = check_unit(buf, at, offset)
    if out[0] == UNIT_GOOD:
        out[1] = is_broker_unit(buf, at)
        out[2] = unit_ms(buf, at)


@kernel
def _blank(segment: Any, position: int) -> None:
    put_timerlog_blank(segment, position)


@kernel
def _next(segment_bytes: int, end: int) -> int:
    return next_unit_offset(segment_bytes, end)


@kernel
def _leads_to(buf: Any, at: int, precision_ms: int, hop_ms: int) -> int:
    return leads_to(buf, at, precision_ms, hop_ms)


def check(data: bytes, offset: int, at: int = 0) -> list[int]:
    """Status, whether a broker wrote it, and its time."""
    out = np.full(3, -9, np.int64)
    _check(GUARDED.hold(data), at, offset, out)
    return out.tolist()


@given(
    offset=st.integers(52, 2**47),
    prev=st.integers(-1, 51),
    magic=st.sampled_from([1, 3, 5, 7, 9, 11, 15]),
    slot=st.integers(2_000_100_000, 2**37),
    within_ms=st.integers(0, 999),
    now_back_ms=st.integers(-(10**10), 10**11),
    later_ms=st.integers(-5, 10**11),
    message=st.integers(0, 2**47),
    size=st.integers(91, 2**22),
    topic_hash=st.integers(-(2**31), 2**31 - 1),
    precision_ms=st.sampled_from([100, 1000]),
)
def test_a_unit(
    offset: int,
    prev: int,
    magic: int,
    slot: int,
    within_ms: int,
    now_back_ms: int,
    later_ms: int,
    message: int,
    size: int,
    topic_hash: int,
    precision_ms: int,
) -> None:
    slot_ms = slot * precision_ms
    time_ms = slot_ms + within_ms % precision_ms
    now_ms = max(0, slot_ms - now_back_ms)
    due_ms = time_ms + later_ms
    written = now_ms // precision_ms * precision_ms
    values = [offset, prev, magic, written, time_ms, slot_ms, message, size, topic_hash, due_ms]
    buf = GUARDED.hold(bytes(60))
    _put(buf, 8, np.array(values, np.int64))
    write_ms = naive.write_ms(slot, now_ms, precision_ms)
    extra = naive.unit_extra(due_ms, time_ms, bool(magic & naive.UNIT_ROLL))
    delta_ms = time_ms - write_ms
    unit = naive.Unit(52, prev, magic, write_ms, delta_ms, message, size, topic_hash, 0, extra)
    unit = naive.seal_unit(unit, offset)
    assert buf.tobytes() == bytes(8) + naive.encode_unit(unit)
    naive.check_unit(unit, offset)
    assert check(buf.tobytes(), offset, 8) == [UNIT_GOOD, unit.crc == unit.extra == 0, time_ms]


PRECISIONS = st.sampled_from([1, 100, 1000])


@given(
    slot=st.integers(10**9, 10**9 + 10**6),
    within_ms=st.integers(0, 999),
    hops=st.integers(0, 60),
    hop_slots=st.integers(2, 10_000),
    precision_ms=PRECISIONS,
    later_ms=st.integers(0, 1000),
    is_delete=st.booleans(),
)
def test_all_units_of_a_timer_lead_to_its_own_slot(
    slot: int,
    within_ms: int,
    hops: int,
    hop_slots: int,
    precision_ms: int,
    later_ms: int,
    is_delete: bool,
) -> None:
    """Of a broker's timer too, which is due up to one precision later than its units lead to."""
    hop_ms = hop_slots * precision_ms
    out_ms = slot * precision_ms + within_ms % precision_ms
    time_ms = out_ms - hops * hop_ms
    assume(time_ms > 0)
    due_ms = out_ms + later_ms % (precision_ms + 1)
    magic = 1 | 2 * (hops > 0) | 4 * is_delete
    extra = naive.unit_extra(due_ms, time_ms, hops > 0)
    unit = naive.seal_unit(naive.Unit(52, -1, magic, 0, 0, 7, 99, 5, 0, extra), 104)
    buf = np.frombuffer(naive.encode_unit(unit._replace(write_ms=time_ms)), np.uint8).copy()
    told = not hops or hop_ms >= precision_ms + 1000
    assert _leads_to(buf, 0, precision_ms, hop_ms) == (slot if told else NOT_SAID)


UNITS = st.builds(
    naive.Unit,
    st.just(52) | st.integers(-(2**31), 2**31 - 1),
    st.integers(-3, 200) | st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 20) | st.integers(-(2**31), 2**31 - 1),
    TIMES | st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 2**31 - 1) | st.integers(-(2**31), -1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.just(0) | st.integers(0, 2**32 - 1),
    st.just(0) | st.integers(0, 2**32 - 1),
)


@given(unit=UNITS, offset=st.integers(0, 300), sealed=st.booleans())
def test_any_unit_has_a_status(unit: naive.Unit, offset: int, sealed: bool) -> None:
    if sealed:
        unit = naive.seal_unit(unit, offset)
    status = check(naive.encode_unit(unit), offset)[0]
    reason = ""
    try:
        naive.check_unit(unit, offset)
    except naive.DamageError as damage:
        reason = damage.reason
    broken = UNIT_BROKEN if reason else UNIT_GOOD
    assert status == (UNIT_BAD_CRC if "CRC" in reason else broken)


@given(unit=UNITS, precision_ms=PRECISIONS, hop_ms=st.integers(0, 10**9))
def test_where_a_sound_unit_leads_to(unit: naive.Unit, precision_ms: int, hop_ms: int) -> None:
    assume(0 <= unit.write_ms < 1 << 48 and unit.delta_ms >= 0)
    expected = naive.leads_to(unit, precision_ms, hop_ms)
    buf = np.frombuffer(naive.encode_unit(unit), np.uint8).copy()
    said = NOT_SAID if expected is None else expected
    assert _leads_to(buf, 0, precision_ms, hop_ms) == said


@given(data=st.binary(max_size=60), at=st.integers(0, 60), offset=st.integers(0, 2**62))
def test_random_bytes(data: bytes, at: int, offset: int) -> None:
    assert check(data, offset, min(at, len(data)))[0] in (UNIT_GOOD, UNIT_BROKEN, UNIT_BAD_CRC)


@given(bit=st.integers(0, 52 * 8 - 1), offset=st.integers(100, 10**9), move=st.integers(1, 10**6))
def test_a_changed_bit_or_place_is_noticed(bit: int, offset: int, move: int) -> None:
    unit = naive.Unit(52, 48, 1, 1_700_000_000_000, 5, 91, 100, -3, 0, 7)
    unit = naive.seal_unit(unit, offset)
    assume(unit.crc)
    data = naive.encode_unit(unit)
    assert check(data, offset)[0] == UNIT_GOOD
    assert check(data, offset + move)[0] == UNIT_BAD_CRC
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    assert check(bytes(changed), offset)[0] != UNIT_GOOD


@pytest.mark.parametrize("segment_bytes", [104, 120, 156, 5248])
def test_segments_end_in_a_blank(segment_bytes: int) -> None:
    for position in range(0, segment_bytes + 1, 52):
        expected = naive.next_unit_offset(segment_bytes, 3 * segment_bytes + position)
        assert _next(segment_bytes, 3 * segment_bytes + position) == expected
        left = segment_bytes - position
        segment = np.zeros(segment_bytes, np.uint8)
        _blank(segment, position)
        blank = naive.blank_unit(left) if left >= naive.TIMER_LOG_BLANK_BYTES else bytes(left)
        assert segment.tobytes() == bytes(position) + blank
