"""What was measured of one store, as rows of the result tables."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from timerstore.jit.record import Words
from timerstore.pipeline.resulttables import TABLES
from timerstore.validation.evidence import Evidence
from timerstore.validation.plan import Scope
from timerstore.validation.result import Validation
from timerstore.values.amounts import DAY_MS, HOUR_MS, MINUTE_MS

HOURS: Final = 24
DAYS: Final = 30
DUE_BINS: Final = HOURS + DAYS + 2
LATE_BINS: Final = 32
LOAD_BINS: Final = 25
UNREADABLE: Final = "unreadable"
_ROLLING: Final = "rolling"


def unreadable(path: str, error: BaseException, now_ms: int) -> dict[str, Any]:
    """Return the row of `stores` of one that could not be read."""
    row: dict[str, Any] = dict.fromkeys(TABLES["stores"].schema.names)
    reason = f"{type(error).__name__}: {error}"
    return row | {
        "path": path,
        "state": UNREADABLE,
        "error": reason,
        "verdict": "fail",
        "at_ms": now_ms,
    }


def tables_of(
    scope: Scope, tally: Evidence, found: Validation, now_ms: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row of `stores` of a store that was looked at, and its other tables by name."""
    (rolling,) = tally.measures[_ROLLING].to_pylist()
    tables = {
        name: TABLES[name].completed(rows)
        for name, rows in tally.measures.items()
        if name != _ROLLING
    }
    tables["groups"] = TABLES["groups"].rows(tally.groups)
    row = _row(scope, found, now_ms) | {name: int(each) for name, each in rolling.items()}
    row |= {
        "due_profile": _due_profile(tables["due"], row["at_ms"]),
        "late_profile": _late_profile(tables["lateness"]),
        "load_profile": _binned(_column(tables["slot_load"], "fires"), LOAD_BINS),
    }
    return row, tables


def _row(scope: Scope, found: Validation, now_ms: int) -> dict[str, Any]:
    view = scope.view
    reader = view.reader
    stands_ms = view.read_slot * reader.precision_ms
    row: dict[str, Any] = dict.fromkeys(TABLES["stores"].schema.names)
    row |= {name: found.counts[name] for name in found.counts if name in row}
    return row | {
        "at_ms": now_ms if view.cut.is_open or not stands_ms else stands_ms,
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
    }


# --- profiles, which runs are compared by


def _column(table: Any, name: str) -> Words:
    found: Words = table.column(name).to_numpy()
    return found


def _binned(values: Words, bins: int, weights: Words | None = None) -> list[int]:
    """Count values by their highest bit: 1, 2–3, 4–7, …; 0 is left out."""
    chosen = values > 0
    bits = np.frexp(values[chosen].astype(np.float64))[1] - 1
    weight = None if weights is None else weights[chosen]
    found = np.bincount(np.minimum(bits, bins - 1), weight, minlength=bins)
    return [int(each) for each in found]


def _due_profile(due: Any, at_ms: int) -> list[int]:
    """Count pending timers: those of the next day by the hour of the day, others by days ahead.

    So what is due is the same whenever the run is.
    """
    minute_ms, timers = _column(due, "minute_ms"), _column(due, "timers")
    left_ms = minute_ms - at_ms // MINUTE_MS * MINUTE_MS
    days = HOURS + np.minimum(left_ms // DAY_MS - 1, DAYS)
    place = np.where(left_ms < DAY_MS, minute_ms // HOUR_MS % HOURS, days)
    place[left_ms < 0] = DUE_BINS - 1
    return [int(each) for each in np.bincount(place, timers, minlength=DUE_BINS)]


def _late_profile(lateness: Any) -> list[int]:
    """Count what fired within the last day of the store by its lateness."""
    hour_ms = _column(lateness, "hour_ms")
    chosen = hour_ms > hour_ms.max(initial=0) - DAY_MS
    fired, late_ms = (_column(lateness, name)[chosen] for name in ("fired", "late_ms"))
    on_time = int(fired[late_ms == 0].sum())
    return [on_time, *_binned(late_ms, LATE_BINS - 1, fired)]
