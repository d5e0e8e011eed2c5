"""Stores for the tests of tables: lived in at random, or laid out by the slow twins."""

import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import timerstore
from tests import naive
from tests.small_store import small
from timerstore import Config, ManualClock
from timerstore.offline.export import export

MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
SMALL = small(4_096, 200, 520, roll_window_slots=4, wheel_slot_count=64, retention_ms=3_600_000)
TOPICS = ["default", "second", "third"]
REFUSED = timerstore.TooLateError, timerstore.UnknownTimerError, timerstore.InvalidArgumentError
"""Of a timer that fired, or of one in a delay level, which cannot be moved."""


def exported(path: Path, table: Any = "pending", *, config: Config | None = None) -> pa.Table:
    """What is exported of a store, as an Arrow table."""
    out = io.BytesIO()
    export(path, table, out, "arrow", config=config)
    return pa.ipc.open_stream(out.getvalue()).read_all()


def exported_rows(
    path: Path, table: Any = "pending", *, config: Config | None = None
) -> list[dict[str, Any]]:
    """The same, a dict each, and so their properties."""
    rows = exported(path, table, config=config).to_pylist()
    return [row | {"properties": dict(row["properties"])} for row in rows]


ACTIONS = st.one_of(
    st.tuples(
        st.just("put"),
        st.lists(st.integers(-500, 15_000), min_size=1, max_size=8),
        st.sampled_from(TOPICS),
    ),
    st.tuples(
        st.just("level"),
        st.lists(st.integers(1, 4), min_size=1, max_size=4),
        st.sampled_from(TOPICS),
    ),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("move"), st.integers(0, 50), st.integers(0, 15_000)),
    st.tuples(st.just("advance"), st.integers(1, 5_000)),
    st.tuples(st.just("flush")),
)
LIVES = st.lists(ACTIONS, min_size=1, max_size=12)


def live(path: Path, life: list[tuple[Any, ...]]) -> timerstore.TimerStore:
    """An open store that all this happened to."""
    clock = ManualClock()
    store = timerstore.open(path, config=SMALL, clock=clock)
    ids: list[str] = []
    for act, *rest in life:
        if act == "put":
            for i, delay_ms in enumerate(rest[0]):
                key = f"key-{i}" if i % 2 else None
                at_ms, properties = clock.now_ms + delay_ms, {"who": "me"} if i % 3 else None
                body = b"body %d" % len(ids)
                ids.append(
                    store.put(
                        body, topic=rest[1], at_ms=at_ms, key=key, tag="t", properties=properties
                    )
                )
        elif act == "level":
            for level in rest[0]:
                ids.append(store.put(b"at level", topic=rest[1], delay_level=level, tag="t"))
        elif act == "cancel" and ids:
            store.cancel(ids[rest[0] % len(ids)])
        elif act == "move" and ids:
            try:
                place = rest[0] % len(ids)
                ids[place] = store.reschedule(ids[place], delay=rest[1] * MILLISECOND)
            except REFUSED:
                pass
        elif act == "advance":
            clock.advance(rest[0] * MILLISECOND)
        elif act == "flush":
            store.flush()
    return store


EVENTFUL: list[tuple[Any, ...]] = [
    ("put", [(i % 12) * 1_000 for i in range(30)], "default"),
    ("cancel", 25),
    ("move", 20, 30_000),
    ("put", [9_000, 2_000, 3_000], "second"),
    ("advance", 6_000),
]
"""Timers that fired, rolled, were cancelled, moved, and are pending."""


def eventful(
    path: Path, config: Config = SMALL, **last: Any
) -> tuple[timerstore.TimerStore, ManualClock]:
    """A store with timers that fired, rolled, were cancelled, moved, and are pending.

    `last`: one more put, before six seconds pass.
    """
    clock = ManualClock()
    store = timerstore.open(path, config=config, clock=clock)
    delay_ms = [(i % 12) * 1_000 for i in range(30)]
    ids = store.put_many([b"body %d" % i for i in range(30)], delay_ms=delay_ms, tag="t")
    store.cancel(ids[25])
    store.reschedule(ids[20], delay=30 * SECOND)
    store.put(**last)
    clock.advance(6 * SECOND)
    return store, clock


def pending(store: timerstore.TimerStore) -> list[tuple[Any, ...]]:
    """What the open store says is pending."""
    return sorted(
        (t.id, t.topic, t.key, t.put_ms, t.due_ms, t.roll_count, t.tag, t.body)
        for t in store.pending()
    )


PENDING_COLUMNS = ("id", "topic", "key", "put_ms", "due_ms", "roll_count", "tag", "body")


def rows(table: Any, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of an Arrow table, sorted."""
    chosen = table.select(list(columns)) if columns else table
    return sorted(zip(*(column.to_pylist() for column in chosen.columns), strict=True), key=repr)


def write_log(path: Path, data: bytes, segment_bytes: int, folder: str = "commitlog") -> Path:
    """A store that holds a commit log alone, as a broker would have left it."""
    (path / folder).mkdir(parents=True)
    for at in range(0, len(data), segment_bytes):
        (path / folder / f"{at:020d}").write_bytes(data[at : at + segment_bytes])
    return path


def place(messages: list[naive.Message], segment_bytes: int) -> int:
    """Put messages one behind the other; return the log's end."""
    end = 0
    for index, message in enumerate(messages):
        message.queue_offset = index
        message.offset = naive.place_behind(segment_bytes, end, message.size_bytes)
        end = message.offset + message.size_bytes
    return end


class Folder:
    """All bytes of one folder of segments, to look at and to change."""

    def __init__(self, path: Path) -> None:
        self.files = sorted(path.iterdir())
        self.size = self.files[0].stat().st_size
        self.start = int(self.files[0].name)

    def read(self, offset: int, count: int) -> bytes:
        number, position = divmod(offset - self.start, self.size)
        return self.files[number].read_bytes()[position : position + count]

    def write(self, offset: int, data: bytes) -> None:
        number, position = divmod(offset - self.start, self.size)
        with open(self.files[number], "r+b") as file:
            file.seek(position)
            file.write(data)

    def flip(self, offset: int) -> None:
        self.write(offset, bytes([self.read(offset, 1)[0] ^ 1]))
