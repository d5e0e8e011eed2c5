"""What is pending, said slowly: the twin of `wheel/judge.py`."""

from tests import naive
from tests.naive_cancelled import LEVEL_MARK, OURS, Identity


def judge(
    message: naive.Message,
    *,
    in_level: bool,
    done: set[int],
    cancelled: set[Identity],
    tag: int,
) -> str:
    """What the sound message at a timer's place is."""
    if message.offset in done:
        return "done"
    properties = message.properties
    if "TIMER_DEL_UNIQKEY" in properties:
        return "delete"
    topic, key = properties.get("REAL_TOPIC"), properties.get("UNIQ_KEY", "")
    if not topic or not (in_level or naive.number(properties.get("TIMER_OUT_MS")) >= 0):
        return "no timer"
    identity = naive.identity(topic.encode(), key.encode(), tag)
    if in_level and identity != (OURS, message.offset | LEVEL_MARK):
        return "pending"  # sent back: its key is that of its first message
    return "cancelled" if identity in cancelled else "pending"
