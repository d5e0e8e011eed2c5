"""Reading on past damage, against what was damaged."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import naive
from tests.strategies import messages
from tests.table_stores import place, write_log
from timerstore.timelog.bytes.message import BAD_CRC
from timerstore.timelog.reading.pastdamage import Damage, read_past_damage
from timerstore.timelog.reading.reader import StoreReader

SEGMENT_BYTES = 4_096
LEVELS = np.array(naive.parse_levels(naive.DEFAULT_LEVELS), np.int64)
HURTS = st.dictionaries(st.integers(0, 9), st.sampled_from(["body", "magic", "all"]), max_size=4)


def hurt(data: bytearray, message: naive.Message, how: str) -> None:
    """Spoil a message's body, so that its structure holds; its magic; or all of it."""
    if how == "body":
        data[message.offset + 88] ^= 1
    elif how == "magic":
        data[message.offset + 4 : message.offset + 8] = b"\7\7\7\7"
    else:
        data[message.offset : message.offset + message.size_bytes] = b"\xee" * message.size_bytes


@given(found=st.lists(messages(), min_size=1, max_size=10), hurts=HURTS)
def test_all_that_is_sound_is_read(found: list[naive.Message], hurts: dict[int, str]) -> None:
    for message in found:
        message.has_crc, message.body = True, message.body or b"x"
        message.properties = {}  # so that no damaged message looks like another one
        message.topic = message.topic[:127]  # at a topic of more than 255 bytes a scan ends
    end = place(found, SEGMENT_BYTES)
    count = -(-end // SEGMENT_BYTES) + 1
    data = bytearray(naive.lay_out(found, SEGMENT_BYTES, count))
    bad = {i: how for i, how in hurts.items() if i < len(found)}
    for i, how in bad.items():
        hurt(data, found[i], how)
    with tempfile.TemporaryDirectory() as folder:
        path = write_log(Path(folder) / "s", bytes(data), SEGMENT_BYTES)
        seen, damaged = list[int](), list[Damage]()
        for item in read_past_damage(StoreReader(path, LEVELS), 0, end):
            if isinstance(item, Damage):
                damaged.append(item)
                framed = [i for i, how in bad.items() if how == "body"]
                is_framed = item.offset in [found[i].offset for i in framed]
                assert len(item.framed) == is_framed
                if is_framed:
                    assert item.framed.status[0] == BAD_CRC
                    assert item.resume == item.offset + item.framed.size[0]
            else:
                seen += item.offset.tolist()
    assert seen == [message.offset for i, message in enumerate(found) if i not in bad]
    lost = [found[i].offset for i in sorted(bad)]
    for offset in lost:  # each lies in what was passed
        assert any(each.offset <= offset < each.resume for each in damaged)
    for each in damaged:
        assert each.offset in lost or each.is_empty
        sound = [offset for offset in seen if each.offset < offset < each.end]
        assert each.following == min([o for o in sound if o >= each.resume], default=-1) or (
            len(each.framed) and each.following in (*sound, -1)
        )
