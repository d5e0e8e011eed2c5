"""Hypothesis strategies for what stands in a store: names, messages, times."""

from hypothesis import strategies as st

from tests import naive

TAG = 0x5EEDF00D
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), max_size=24)
SOME_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), min_size=1, max_size=24
)
TOPICS = st.text("%|abcXYZ019_-", min_size=1, max_size=127)
TIMES = st.integers(1_000_000_000_000, 253_402_300_799_999)
OFFSETS = st.integers(0, 1 << 47)

# Names that a kernel tells apart by their bytes, and others that begin or end as they do.
TIMER_NAMES = [
    *("TIMER_OUT_MS", "TIMER_DELIVER_MS", "UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "TIMER_ORIGIN"),
    *("TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "TIMER_REPLACES", "RETRY_TOPIC", "TAGS", "KEYS"),
    *("DELAY", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "__CRC32#"),
]
NEARLY = [
    *("TIMER_OUT_MX", "TIMER_OUT_M", "TIMER_OUT_MS_", "TIMER_DELIVER_MX", "TIMER_DELAY_MS"),
    *("TIMER_DEXIVER_MS", "TIMER_DELAY_SEC", "UNIQ_KEY_", "UNIQ_KEX", "REAL_TOPAZ", "REAL_TOPIC_"),
    *("REAL_TOP", "REAL_QID_", "REAL_QIX", "TIMER_ORDER", "TIMER_ORIGIX", "TIMER_ORIGINS"),
    *("TIMER_OR", "TIMER_ROOM", "TIMER_ROXL_TIMES", "TIMER_ROLL_TIMEX", "TIMER_ROLL_TIME"),
    *("TIMER_DEX_UNIQKEY", "TIMER_DEL_UNIQKEX", "TIMER_DE", "TIMER_REMINDER", "TIMER_REPLACED"),
    *("RETRY_TOPAZ", "RETRY_TO", "TAG", "TAGS_", "KEY", "KEYS_", "DELA", "DELAYS", "TIMER_END"),
    *("TIMER_ENQUEUE_MX", "TIMER_ENQUEXE_MS", "TIMER_DEQUEUE_MX", "TIMER_EN", "__CRC32", "X"),
    *("__CRC32#_", "TIMER_ENXUEUE_MS", "TIMER_DEXUEUE_MS", "TIMER_DXL_UNIQKEY", "DELAY_"),
]

OUR_KEYS = st.builds(
    lambda due, offset: naive.encode_unique_key(naive.UniqueKey(due, offset, TAG)), TIMES, OFFSETS
)
KEYS = OUR_KEYS | st.text("0123456789ABCDEFabcdefG", min_size=32, max_size=32) | SOME_TEXT
NUMBERS = st.integers(0, 10**18 - 1).map(str)

VALUES = {
    "TIMER_OUT_MS": TIMES.map(str) | NUMBERS | SOME_TEXT,
    "TIMER_DELIVER_MS": TIMES.map(str) | NUMBERS | SOME_TEXT,
    "UNIQ_KEY": KEYS,
    "REAL_TOPIC": TOPICS,
    "REAL_QID": st.integers(0, 64).map(str),
    "TIMER_ORIGIN": st.integers(0, 10**16 - 1).map(lambda n: f"{n:020d}") | NUMBERS,
    "TIMER_ROLL_TIMES": st.integers(0, 1000).map(str),
    "TIMER_DEL_UNIQKEY": KEYS,
    "TIMER_REPLACES": KEYS,
    "DELAY": st.integers(0, 30).map(str),
}


@st.composite
def properties(draw: st.DrawFn, names: list[str] | None = None) -> dict[str, str]:
    """Properties with names that matter, names that nearly do, and any others, in any order."""
    known = st.sampled_from(names if names is not None else TIMER_NAMES + NEARLY)
    chosen = draw(st.lists(known | SOME_TEXT, max_size=8, unique=True))
    return {name: draw(VALUES.get(name, SOME_TEXT)) for name in chosen}


@st.composite
def usual_messages(draw: st.DrawFn) -> naive.Message:
    """A timer as we put it, or one whose properties begin nearly as ours do."""
    digits = st.text("0123456789", min_size=12, max_size=14) | st.just("1700000000000")
    odd = st.text("0123456789ABCDEFx", min_size=31, max_size=33)
    usual = {
        "TIMER_OUT_MS": draw(digits | st.just("17000000000x0")),
        "UNIQ_KEY": draw(odd | st.text("0123456789ABCDEF", min_size=32, max_size=32)),
        "REAL_QID": draw(st.sampled_from(["0", "7", "12", "x"])),
        "REAL_TOPIC": draw(st.text("abcXYZ019_-%|ä", min_size=1, max_size=60)),
    }
    for name in draw(st.lists(st.sampled_from(list(usual)), max_size=1)):
        del usual[name]
    has_crc = draw(st.booleans())
    return naive.Message(
        topic="rmq_sys_wheel_timer",
        body=draw(st.binary(max_size=700)),
        properties=usual | draw(st.just({}) | properties()),
        offset=draw(OFFSETS),
        store_host=naive.OUR_HOST if has_crc else naive.BROKER_HOST,
        has_crc=has_crc,
    )


@st.composite
def messages(draw: st.DrawFn) -> naive.Message:
    """Any message that a broker or we may have written, at a made-up place."""
    long_topic = draw(st.booleans())
    system_flag = draw(st.sampled_from([0, 1, 0x10, 0x20, 0x30]))
    host = draw(st.sampled_from([naive.BROKER_HOST, ("10.1.2.3", 0)]))
    host_v6 = ("fe80::1", 10911)
    topic = draw(st.text("abcXYZ019_-%|ä", min_size=1, max_size=60))
    return naive.Message(
        topic=topic * 5 if long_topic else topic,
        body=draw(st.binary(max_size=200)),
        properties=draw(properties()),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        queue_offset=draw(st.integers(0, 2**62)),
        offset=draw(OFFSETS),
        system_flag=system_flag,
        born_ms=draw(TIMES),
        born_host=host_v6 if system_flag & naive.BORN_HOST_IPV6 else host,
        stored_ms=draw(TIMES),
        store_host=host_v6 if system_flag & naive.STORE_HOST_IPV6 else host,
        reconsume_times=draw(st.integers(0, 99)),
        prepared_offset=draw(st.integers(0, 2**62)),
        magic=naive.MESSAGE_MAGIC_LONG_TOPIC if long_topic else naive.MESSAGE_MAGIC,
        has_crc=draw(st.booleans()),
    )
