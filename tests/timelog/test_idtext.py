"""Ids written or read many at once, against Python's own way with hex digits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerstore.timelog.bytes.decode import read_ids, write_ids
from timerstore.values import ids as of_ids
from timerstore.values.check_arguments import Binaries
from timerstore.values.ids import ID_DIGITS, TimerIds, format_id, parse_id, read_plain

TAG = 0xEF5F2ADA
PARTS = st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1))


@given(parts=st.lists(PARTS, max_size=9), tag=st.integers(0, 2**32 - 1))
def test_what_is_written_is_read(parts: list[tuple[int, int]], tag: int) -> None:
    due_ms, offsets = (np.array([part[i] for part in parts], np.int64) for i in (0, 1))
    digits = np.zeros(ID_DIGITS * len(parts), np.uint8)
    write_ids(due_ms, offsets, tag, digits)
    expected = [format_id(*part, tag) for part in parts]
    assert digits.tobytes().decode() == "".join(expected)
    ids = TimerIds(due_ms, offsets, tag)
    assert list(ids) == expected
    assert [ids[i] for i in range(len(ids))] == expected
    for every in (ids, expected):
        if parts:
            read = read_plain(every, tag)
            assert read is not None
            assert read[0].tolist() == due_ms.tolist() and read[1].tolist() == offsets.tolist()
            joined = of_ids._read_joined(expected, tag)
            assert joined is not None
            assert [each.tolist() for each in joined] == [each.tolist() for each in read]


def changed(text: str, at: int, other: str) -> str:
    return text[:at] + other + text[at + 1 :]


@given(
    parts=st.lists(PARTS, min_size=1, max_size=5),
    which=st.integers(0, 4),
    at=st.integers(0, 31),
    other=st.sampled_from("0Aa fg_+-xG\x00/:@`"),
)
def test_reading_ends_where_an_id_is_not_as_we_write_it(
    parts: list[tuple[int, int]], which: int, at: int, other: str
) -> None:
    ids = [format_id(*part, TAG) for part in parts]
    which %= len(ids)
    ids[which] = changed(ids[which], at, other)
    due_ms, offsets = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    texts = Binaries(ids, "ids")
    count = int(read_ids(texts.pieces, TAG, due_ms, offsets))
    part = parse_id(ids[which])
    assert (part is not None) == all(each in "0123456789ABCDEFabcdef" for each in ids[which])
    if part is not None and part.tag == TAG and format_id(*part) == ids[which]:
        assert count == len(ids)
        assert (due_ms[which], offsets[which]) == part[:2]
        return
    assert count == which
    assert read_plain(ids, TAG) is None


def test_what_is_no_list_of_our_ids() -> None:
    one = format_id(1_700_000_000_000, 77, TAG)
    for ids in (
        [one, one[:-1]],
        [one[:16], one + one[16:]],  # together of the right length
        [one, None],
        [one, one.encode()],
        [one, one[:-1] + "é"],
        [format_id(1, 2, TAG + 1)],
        TimerIds(np.zeros(1, np.int64), np.zeros(1, np.int64), TAG + 1),
    ):
        assert read_plain(ids, TAG) is None  # type: ignore[arg-type]
