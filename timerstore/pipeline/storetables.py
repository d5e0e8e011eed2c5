"""What was measured of one store, as rows of the result tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.pipeline.resulttables import TABLES
from timerstore.tables.bounds import java_hash
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import measured as counted
from timerstore.validation.evidence import Evidence
from timerstore.validation.measured import Measured
from timerstore.validation.plan import Scope
from timerstore.validation.result import Validation
from timerstore.values.amounts import DAY_MS, HOUR_MS, MINUTE_MS

HOURS: Final = 24
DAYS: Final = 30
DUE_BINS: Final = HOURS + DAYS + 2
LATE_BINS: Final = 32
LOAD_BINS: Final = 25
UNREADABLE: Final = "unreadable"


@dataclass
class StoreTables:
    """The rows of one store in one run: of `stores` the one as a dict, of others Arrow tables."""

    store: dict[str, Any]
    tables: dict[str, Any] = field(default_factory=dict)

    def column(self, table: str, name: str) -> Words:
        """Return a column of numbers; null is −1."""
        column = self.tables[table].column(name).combine_chunks()
        found: Words = column.fill_null(-1).to_numpy(zero_copy_only=False)
        return found


def reason_of(error: BaseException) -> str:
    """Return an error as a text that says its kind."""
    return f"{type(error).__name__}: {error}"


def unreadable(path: str, reason: str, now_ms: int) -> dict[str, Any]:
    """Return the row of a store that could not be read."""
    row: dict[str, Any] = dict.fromkeys(TABLES["stores"].schema.names)
    row |= {"path": path, "state": UNREADABLE, "error": reason, "verdict": "fail"}
    return row | {"at": _moments([now_ms])[0].item(), "at_ms": now_ms}


def tables_of(scope: Scope, tally: Evidence, now_ms: int) -> tuple[StoreTables, Validation]:
    """Make the tables of a store that was looked at, without its findings; O(slots log slots)."""
    measured = tally.measured
    assert measured is not None
    found = Validation.make(scope, tally)
    names = tally.topics
    made = {
        "slot_load": _slot_load(measured, names.values(), scope.view.reader.precision_ms),
        "due": _due(measured, names),
        "lateness": _lateness(measured, names),
        "groups": _groups(measured),
        "growth": _growth(measured),
    }
    seen = StoreTables(_store(scope, found, measured, now_ms), made)
    at_ms = seen.store["at_ms"]
    seen.store["due_profile"] = _due_profile(seen, at_ms)
    seen.store["late_profile"] = _late_profile(seen)
    seen.store["load_profile"] = _binned(seen.column("slot_load", "fires"), LOAD_BINS)
    return seen, found


def _store(scope: Scope, found: Validation, measured: Measured, now_ms: int) -> dict[str, Any]:
    view = scope.view
    reader = view.reader
    stands_ms = view.read_slot * reader.precision_ms
    at_ms = now_ms if view.cut.is_open or not stands_ms else stands_ms
    rolls = measured.table(counted.ROLLS)
    hops, timers, size = rolls.T
    row: dict[str, Any] = dict.fromkeys(TABLES["stores"].schema.names)
    row |= {name: found.counts[name] for name in found.counts if name in row}
    return row | {
        "at": _moments([at_ms])[0].item(),
        "at_ms": at_ms,
        "path": found.path,
        "state": "sound" if found.ok else "damaged",
        "by_broker": found.by_broker,
        "was_open": found.was_open,
        "is_copy": view.cut.is_laid,
        "stands_ms": stands_ms,
        "precision_ms": reader.precision_ms,
        "ring_slots": 2 * reader.sizes.wheel_slot_count,
        "window_slots": reader.sizes.roll_window_slots,
        "log_bytes": view.log_stop - reader.commitlog.start,
        "unit_bytes": max(0, scope.units_stop - reader.timerlog.start),
        "rolling": int(timers.sum()),
        "hops": int((hops * timers).sum()),
        "hop_bytes": int((hops * size).sum()),
    }


def _moments(values_ms: Any) -> Any:
    """Return times as datetime64 in microseconds, of ms; what none can show is the last that is."""
    values = np.minimum(np.asarray(values_ms, np.int64), 253_402_300_799_000)
    return (values * 1_000).view("datetime64[us]")


def _slot_load(measured: Measured, topics: Iterable[str], precision_ms: int) -> Any:
    rows = measured.slot_rows()
    by_hash = {java_hash(name) & 0xFFFFFFFF: name for name in topics}
    hashes, back = np.unique(rows[:, counted.SLOT_TOP_HASH], return_inverse=True)
    names = np.array([by_hash.get(each) for each in hashes.tolist()], object)
    slot, index = rows[:, counted.SLOT_NUMBER], rows[:, counted.SLOT_INDEX]
    columns: dict[str, Any] = {
        "run": "",
        "slot": slot,
        "index": np.ma.masked_less(index, 0),
        "time": _moments(slot * precision_ms),
        "time_ms": slot * precision_ms,
        "read_bytes": rows[:, counted.SLOT_PAGES] * counted.PAGE_BYTES,
        "top_topic": names[back] if len(names) else np.zeros(0, object),
        "bytes": rows[:, counted.SLOT_MESSAGE_BYTES],
        "top_units": rows[:, counted.SLOT_TOP],
    }
    numbers = ("units", "live", "fires", "deletes", "superseded", "rolls", "late", "expected")
    for name in (*numbers, "depth"):
        columns[name] = rows[:, getattr(counted, f"SLOT_{name.upper()}")]
    return TABLES["slot_load"].make(columns)


def _named(numbers: Words, names: Mapping[int, str]) -> Any:
    """Return the names of topics, given by their numbers."""
    values, back = np.unique(numbers, return_inverse=True)
    found = np.array([names.get(each, "") for each in values.tolist()], object)
    return found[back] if len(values) else np.zeros(0, object)


def _due(measured: Measured, names: Mapping[int, str]) -> Any:
    minute, topic, timers = measured.table(counted.DUE).T
    minute_ms = minute * MINUTE_MS
    return TABLES["due"].make(
        {
            "run": "",
            "topic": _named(topic, names),
            "minute": _moments(minute_ms),
            "minute_ms": minute_ms,
            "hour_ms": minute_ms // HOUR_MS * HOUR_MS,
            "day_ms": minute_ms // DAY_MS * DAY_MS,
            "timers": timers,
        }
    )


def _lateness(measured: Measured, names: Mapping[int, str]) -> Any:
    topic, hour, late_ms, fired = measured.table(counted.LATENESS).T
    hour_ms = hour * HOUR_MS
    columns = {"topic": _named(topic, names), "hour": _moments(hour_ms), "hour_ms": hour_ms}
    return TABLES["lateness"].make({"run": "", **columns, "late_ms": late_ms, "fired": fired})


def _groups(measured: Measured) -> Any:
    rows = []
    for each in sorted(measured.groups):
        topic = each.topic.encode()
        kind = "retry" if topic.startswith(fmt.RETRY_PREFIX) else "topic"
        oldest_ms = each.oldest_ms if each.oldest_ms >= 0 else None
        rows.append(
            {
                "run": "",
                "group": each.group,
                "topic": each.topic,
                "queue_id": each.queue_id,
                "kind": "dead" if topic.startswith(fmt.DEAD_PREFIX) else kind,
                "committed": each.committed,
                "end": each.end,
                "lag": max(0, each.end - each.committed),
                "oldest": None if oldest_ms is None else _moments([oldest_ms])[0].item(),
                "oldest_ms": oldest_ms,
            }
        )
    return TABLES["groups"].rows(rows)


def _growth(measured: Measured) -> Any:
    hour, kind, messages, size = measured.table(counted.GROWTH).T
    hour_ms = hour * HOUR_MS
    kinds = np.array(counted.KINDS, object)[kind]
    columns = {"hour": _moments(hour_ms), "hour_ms": hour_ms, "kind": kinds}
    return TABLES["growth"].make({"run": "", **columns, "messages": messages, "bytes": size})


# --- profiles, which runs are compared by


def _binned(values: Words, bins: int, weights: Words | None = None) -> list[int]:
    """Count values by their highest bit: 1, 2–3, 4–7, …; 0 is left out."""
    chosen = values > 0
    bits = np.frexp(values[chosen].astype(np.float64))[1] - 1
    weight = None if weights is None else weights[chosen]
    found = np.bincount(np.minimum(bits, bins - 1), weight, minlength=bins)
    return [int(each) for each in found]


def _due_profile(seen: StoreTables, at_ms: int) -> list[int]:
    """Count pending timers: those of the next day by the hour of the day, others by days ahead.

    So what is due is the same whenever the run is.
    """
    minute_ms = seen.column("due", "minute_ms")
    left_ms = minute_ms - at_ms // MINUTE_MS * MINUTE_MS
    days = HOURS + np.minimum(left_ms // DAY_MS - 1, DAYS)
    place = np.where(left_ms < DAY_MS, minute_ms // HOUR_MS % HOURS, days)
    place[left_ms < 0] = DUE_BINS - 1
    found = np.bincount(place, seen.column("due", "timers"), minlength=DUE_BINS)
    return [int(each) for each in found]


def _late_profile(seen: StoreTables) -> list[int]:
    """Count what fired within the last day of the store by its lateness."""
    hour_ms, late_ms = seen.column("lateness", "hour_ms"), seen.column("lateness", "late_ms")
    chosen = hour_ms > hour_ms.max(initial=0) - DAY_MS
    fired, late_ms = seen.column("lateness", "fired")[chosen], late_ms[chosen]
    on_time = int(fired[late_ms == 0].sum())
    return [on_time, *_binned(late_ms, LATE_BINS - 1, fired)]
