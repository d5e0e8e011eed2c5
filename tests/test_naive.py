"""The twins themselves, where the golden stores show no example."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import naive

HOSTS = {0: ("10.0.0.1", 10911), 1: ("fe80::1", 10911)}
LEVELS_MS = naive.parse_levels(naive.DEFAULT_LEVELS)


@given(
    topic=st.text(st.characters(codec="utf-8"), min_size=1, max_size=200),
    body=st.binary(min_size=1, max_size=64),
    properties=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1),
        st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1),
        max_size=4,
    ),
    born_ipv6=st.booleans(),
    store_ipv6=st.booleans(),
    has_crc=st.booleans(),
)
def test_a_message_comes_back(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    born_ipv6: bool,
    store_ipv6: bool,
    has_crc: bool,
) -> None:
    long_topic = len(topic.encode()) > 127
    message = naive.Message(
        topic=topic,
        body=body,
        properties=properties,
        offset=4096,
        system_flag=naive.BORN_HOST_IPV6 * born_ipv6 | naive.STORE_HOST_IPV6 * store_ipv6,
        born_host=HOSTS[born_ipv6],
        store_host=HOSTS[store_ipv6],
        magic=naive.MESSAGE_MAGIC_LONG_TOPIC if long_topic else naive.MESSAGE_MAGIC,
        has_crc=has_crc,
    )
    data = naive.encode_message(message)
    sizes = len(body) + len(topic.encode()) + len(naive.encode_properties(properties))
    assert len(data) == 91 + sizes + 20 * has_crc + 12 * (born_ipv6 + store_ipv6) + long_topic
    assert naive.decode_message(data, 4096) == message


@pytest.mark.parametrize("at", range(0, 140, 7))
def test_a_changed_byte_is_noticed(at: int) -> None:
    data = bytearray(naive.encode_message(naive.Message("orders", b"body" * 10)))
    assert at < len(data)
    data[at] ^= 0x40
    with pytest.raises(naive.DamageError):
        naive.decode_message(bytes(data), 0)


def test_crc_digits_stand_lowest_first() -> None:
    before = b"any bytes"
    crc = naive.crc31(before)
    (digits,) = naive.decode_properties(naive.crc_property(before)).values()
    assert sum(int(digit) * 10**power for power, digit in enumerate(digits)) == crc


def test_a_stale_crc_in_the_middle_is_no_crc() -> None:
    stale = {"__CRC32#": "0123456789", "TAGS": "t"}
    message = naive.Message("orders", b"body", stale, has_crc=False, store_host=naive.BROKER_HOST)
    read = naive.decode_message(naive.encode_message(message), 0)
    assert not read.has_crc
    assert read.properties == stale


def test_a_wrong_crc_at_the_end_is_damage() -> None:
    wrong = {"TAGS": "t", "__CRC32#": "0123456789"}
    data = naive.encode_message(
        naive.Message("orders", b"body", wrong, has_crc=False, store_host=naive.BROKER_HOST)
    )
    with pytest.raises(naive.DamageError, match="CRC of the message"):
        naive.decode_message(data, 0)


def test_properties_are_read_as_a_broker_does() -> None:
    data = b"a\x011\x02empty\x01\x02\x01nameless\x02no separator\x02a\x012\x02last\x01no end"
    assert naive.decode_properties(data) == {"a": "2", "last": "no end"}


def test_a_log_goes_on_behind_a_blank() -> None:
    first = naive.encode_message(naive.Message("t", b"x" * 50))
    second = naive.encode_message(naive.Message("t", b"y" * 50, offset=400))
    left = 400 - len(first)
    segments = {
        0: first + naive.blank_message(left),
        400: second.ljust(400, b"\0"),
    }
    scan = naive.scan_commit_log(segments)
    assert [message.offset for message in scan.messages] == [0, 400]
    assert scan.blanks == [(len(first), left)]
    assert (scan.end, scan.damage) == (400 + len(second), None)


def test_a_log_ends_at_a_torn_message() -> None:
    data = naive.encode_message(naive.Message("t", b"x" * 50))
    scan = naive.scan_commit_log({0: data[:-30].ljust(400, b"\0")})
    assert (scan.messages, scan.end) == ([], 0)
    assert scan.damage is not None


def test_java_hash() -> None:
    # Values that Java gives; the emoji counts as two UTF-16 units.
    assert naive.java_hash("") == 0
    assert naive.java_hash("hello") == 99162322
    assert naive.java_hash("polygenelubricants") == -(2**31)
    assert naive.java_hash("😀") == 31 * 0xD83D + 0xDE00


def test_a_queue_can_begin_with_a_blank() -> None:
    entry = naive.Entry(1234, 99, -5)
    blank = naive.encode_entry(naive.QUEUE_BLANK)
    segment = (blank * 3 + naive.encode_entry(entry)).ljust(200, b"\0")
    assert naive.scan_queue({2000: segment}) == {103: entry}


@pytest.mark.parametrize("at", range(naive.UNIT_BYTES))
def test_a_changed_byte_of_our_unit_is_noticed(at: int) -> None:
    unit = naive.seal_unit(naive.Unit(52, -1, 1, 5000, 250, 777, 300, -42, extra=17), 104)
    naive.check_unit(unit, 104)
    with pytest.raises(naive.DamageError):
        naive.check_unit(unit, 156)
    data = bytearray(naive.encode_unit(unit))
    data[at] ^= 0x10
    with pytest.raises(naive.DamageError):
        naive.check_unit(naive.decode_unit(bytes(data)), 104)


def test_json_in_both_forms() -> None:
    loose = '{"offsetTable":{3:1200,-1:0},"a:1":"{2:3}","quote\\"4:":[5,{6 : 7}]}'
    value = naive.parse_json(loose)
    assert value["offsetTable"] == {"3": 1200, "-1": 0}
    assert value["a:1"] == "{2:3}"
    assert value['quote"4:'] == [5, {"6": 7}]
    assert naive.parse_json(naive.write_json(value)) == value


def test_due_to_the_millisecond() -> None:
    tag = 0xABCD1234
    ours = naive.encode_unique_key(naive.UniqueKey(5250, 777, tag))
    assert len(ours) == 32
    assert naive.decode_unique_key(ours, tag) == (5250, 777, tag)
    assert naive.due_ms({"TIMER_OUT_MS": "5250", "UNIQ_KEY": ours}, 1000, tag) == 5250
    # A broker's: the producer's time where it belongs to TIMER_OUT_MS, else one precision later.
    for deliver_ms, due_ms in [(5704, 5704), (6000, 6000), (6001, 6000), (4999, 6000)]:
        theirs = {"TIMER_OUT_MS": "5000", "TIMER_DELIVER_MS": str(deliver_ms), "UNIQ_KEY": ours}
        assert naive.due_ms(theirs, 1000, store_tag=1) == due_ms
    assert naive.due_ms({"TIMER_OUT_MS": "5000"}, 1000, tag) == 6000


cursors = st.integers(0, 1000)


@given(
    out_ms=st.integers(0, 10**7),
    now_ms=st.integers(0, 10**6),
    window=st.integers(2, 48),
    read=cursors,
)
def test_place_keeps_to_the_ring_and_to_the_grid(
    out_ms: int, now_ms: int, window: int, read: int
) -> None:
    wheel = naive.Wheel(1000, 50, window, read=read)
    slot, time_ms, is_roll = naive.place(out_ms, now_ms, wheel)
    base = max(now_ms // 1000, read)
    assert read <= slot < wheel.top
    assert slot == time_ms // 1000
    assert is_roll == (out_ms // 1000 >= min(base + window, wheel.top))
    if is_roll:
        hops = (out_ms - time_ms) // (wheel.hop * 1000)
        assert time_ms == out_ms - hops * wheel.hop * 1000
        assert hops >= 1
        assert slot < base + window
        # One hop less would not fit: the smallest k.
        assert slot + wheel.hop >= min(base + window, wheel.top)
        assert slot in naive.grid_slots(out_ms // 1000, wheel, claimed=read)
    written_ms = naive.write_ms(slot, now_ms, 1000)
    assert written_ms <= slot * 1000
    assert 0 <= time_ms - written_ms <= 0x7FFFFFFF


def test_write_time_moves_where_the_difference_is_too_long() -> None:
    assert naive.write_ms(3_000_000, 1234, 1000) == 1_000_000_000
    assert naive.write_ms(3, 9999, 1000) == 3000


def test_unit_extra() -> None:
    assert naive.unit_extra(5250, 5000, is_roll=False) == 250
    assert naive.unit_extra(4250, 5000, is_roll=False) == naive.UINT32_MAX
    assert naive.unit_extra(1_795_251_270_313, 0, is_roll=True) == 1_795_251_270
    assert naive.unit_extra(2**32 * 1000, 0, is_roll=True) == naive.UINT32_MAX


def test_congestion_rises_from_the_limit_to_twice_the_limit() -> None:
    chances = [naive.rejection_probability(count, 100) for count in (0, 100, 125, 150, 200, 999)]
    assert chances == [0, 0, 0.25, 0.5, 1, 1]


def test_delete_names_its_target_in_both_ways() -> None:
    target = {"REAL_TOPIC": "orders", "UNIQ_KEY": "K"}
    for named, hits in [("orders+K", True), ("K", True), ("payments+K", False)]:
        assert naive.deletes({"TIMER_DEL_UNIQKEY": named}, target) is hits


def test_levels() -> None:
    assert len(LEVELS_MS) == 18
    assert naive.parse_levels("1s 2m 3h 1d") == [1000, 120_000, 10_800_000, 86_400_000]
    assert not naive.level_is_due(due_ms=1500, delay_ms=500, now_ms=1499)
    assert naive.level_is_due(due_ms=1500, delay_ms=500, now_ms=1500)
    assert not naive.level_is_due(due_ms=2700, delay_ms=500, now_ms=1200)
    assert naive.level_is_due(due_ms=2701, delay_ms=500, now_ms=1200)
