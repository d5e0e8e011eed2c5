"""Composed messages against the slow encoder."""

from hypothesis import assume, given
from hypothesis import strategies as st

from tests import naive
from tests.strategies import OUR_KEYS, TIMES, properties
from timerstore.timelog.bytes.text import java_hash_of
from timerstore.timelog.writing.append import new_stage
from timerstore.timelog.writing.compose import Staged, compose, stage_messages


@given(
    topic=st.text("abc-ä", min_size=1, max_size=100),
    body=st.binary(max_size=100),
    pairs=properties(),
    born_ms=TIMES,
    queue_id=st.integers(0, 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    times=st.integers(0, 99),
)
def test_composed_is_encoded(
    topic: str,
    body: bytes,
    pairs: dict[str, str],
    born_ms: int,
    queue_id: int,
    flag: int,
    times: int,
) -> None:
    assume(naive.CRC_NAME not in pairs)
    data = compose(
        topic.encode(),
        body,
        naive.encode_properties(pairs),
        born_ms=born_ms,
        queue_id=queue_id,
        flag=flag,
        reconsume_times=times,
    )
    long_topic = len(topic.encode()) > 127
    assert data == naive.unsealed(
        naive.Message(
            topic=topic,
            body=body,
            properties=pairs,
            queue_id=queue_id,
            flag=flag,
            born_ms=born_ms,
            reconsume_times=times,
            magic=naive.MESSAGE_MAGIC_LONG_TOPIC if long_topic else naive.MESSAGE_MAGIC,
        )
    )


@given(key=OUR_KEYS, body=st.binary(max_size=40), own_key=st.booleans())
def test_staged_messages_stand_behind_each_other(key: str, body: bytes, own_key: bool) -> None:
    stage = new_stage()
    body += b"\x02UNIQ_KEY\x01"  # a body that looks like the property
    pairs = naive.encode_properties({"TIMER_OUT_MS": "1", "UNIQ_KEY": key, "a": "b"})
    keyed = compose(b"t", body, pairs, born_ms=1)
    plain = compose(b"t", b"body", b"", born_ms=2)
    entries = [Staged(keyed, 1, 2, 3, 4, 9), Staged(plain, 5, 6, -1, 0, 8, 7, 6)]
    assert stage_messages(stage, entries, own_key=own_key) == 2
    assert stage.buffer[: len(keyed) + len(plain)].tobytes() == keyed + plain
    assert stage.size[:2].tolist() == [len(keyed), len(plain)]
    assert stage.row[:2].tolist() == [1, 5]
    assert stage.tags_code[:2].tolist() == [2, 6]
    assert stage.pending_row[:2].tolist() == [3, -1]
    assert stage.pending_change[:2].tolist() == [4, 0]
    assert stage.counted_ms[:2].tolist() == [9, 8]
    assert stage.born_ms[:2].tolist() == [1, 7]
    assert stage.body_bytes[:2].tolist() == [len(body), 6]
    digits_at = keyed.rindex(key.encode()) + 12
    assert stage.key_at[:2].tolist() == [digits_at if own_key else -1, -1]


@given(text=st.text(max_size=30))
def test_java_hash(text: str) -> None:
    assert java_hash_of(text) == naive.java_hash(text)
