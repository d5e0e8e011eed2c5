"""Whether a broker could go on with all of a store, looked at before anything of it is changed.

A broker that opens ends its commit log at the first message that does not fit, and its timer log at
the first unit; what is behind that is gone. It passes a blank whose magic number is right, and
never looks at what stands behind one.
"""

from __future__ import annotations

import shlex
from typing import Final

from timerstore.errors import TimerStoreError
from timerstore.services.damage.scrub import Scrub
from timerstore.services.engine.engine import Engine
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.decode import text
from timerstore.timelog.reading.pastdamage import Damage

_NAMED_MAX: Final = 20
"""So many places are in the error; `stats().damage` has them all."""
_TRIES: Final = 8


def check_whole(engine: Engine) -> None:
    """Read everything once; raise TimerStoreError if a broker would lose a part of it. O(bytes).

    Services may run. Nor is a store handed over of which the next opening makes an index anew.
    """
    damaged = list[tuple[Damage, int]]()
    scrub = Scrub(engine, lambda damage: damaged.append((damage, scrub.message_count)))
    hold = engine.holds.take()
    for _ in range(_TRIES):
        damaged.clear()
        while scrub.step():
            pass
        if scrub.pass_count:
            break
    else:
        raise TimerStoreError("The store was not handed over, because it could not be read whole.")
    del hold
    lost = [(damage, count) for damage, count in damaged if not _is_passed(engine, damage)]
    if lost:
        _refuse_damaged(engine, [damage for damage, _ in lost], scrub.message_count - lost[0][1])
    if engine.wanted.indexes:
        names = " and ".join(f"the {name}" for name in sorted(engine.wanted.indexes))
        raise TimerStoreError(
            f"The store was not handed over: damage was found in {names}, and a broker would lose "
            "timers or messages. The next opening makes that anew. Close the store, open it, and "
            "hand it over."
        )


def _is_passed(engine: Engine, damage: Damage) -> bool:
    """Tell whether a broker passes what stands there: what it takes for the end of a segment."""
    if damage.is_message or damage.following >= 0:
        return False
    segment_bytes = engine.commitlog.segment_bytes
    left = segment_bytes - damage.offset % segment_bytes
    if left < fmt.BLANK_BYTES:
        return False
    data = engine.commitlog.read(damage.offset, fmt.BLANK_BYTES)
    size = int.from_bytes(data[: fmt.BLANK_MAGIC_AT], "big", signed=True)
    return size <= left and data[fmt.BLANK_MAGIC_AT :] == fmt.BLANK_MAGIC.to_bytes(4, "big")


def _refuse_damaged(engine: Engine, damaged: list[Damage], behind_count: int) -> None:
    path = shlex.quote(str(engine.path))
    lines = [
        f"The store was not handed over, and nothing was changed: {len(damaged)} places of its "
        "commit log are damaged. A broker ends the log at the first of them, so it would lose the "
        f"{behind_count:,} messages behind that, with their timers. Close the store, make a sound "
        f"copy without what is damaged (`timerstore salvage {path} NEW`), and hand NEW over. To "
        "get back what is damaged, restore a backup that is older than the damage instead."
    ]
    lines += [_told(engine, each) for each in damaged[:_NAMED_MAX]]
    if len(damaged) > _NAMED_MAX:
        lines.append(f"… and {len(damaged) - _NAMED_MAX} more: see stats().damage")
    raise TimerStoreError("\n".join(lines))


def _told(engine: Engine, damage: Damage) -> str:
    """Name a place, and the message there as far as its bytes can be read."""
    place = f"commitlog at offset {damage.offset}: {damage.told(engine.commitlog.end)}"
    if not len(damage.framed):
        return place
    row, read = damage.framed, engine.commitlog.read
    topic_at, topic_bytes = row.real_topic_at[0], row.real_topic_bytes[0]
    if topic_bytes <= 0:
        topic_at, topic_bytes = row.topic_at[0], row.topic_bytes[0]
    topic = text(read(int(topic_at), int(topic_bytes)))
    key = text(read(int(row.key_at[0]), max(0, int(row.key_bytes[0]))))
    return f"{place} (topic {topic!r}, id {key!r})"
