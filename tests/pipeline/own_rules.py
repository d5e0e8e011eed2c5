"""A rule of one's own, over a table of stores and one of the run, and stores to try it on."""

from datetime import timedelta
from pathlib import Path

from tests.pipeline.planted_stores import CONFIG, START_MS
from timerstore import ManualClock, TimerStore

TWICE = """\
-- looks at: timers
-- measures: timers that wait for one key
-- means: Somebody gets the same reminder
--   more than once.
-- do: Cancel the earlier one.
-- warn: 1
-- fail: 2
-- says: {timers:reminder} for {key}.
-- none: No timer waits.
-- place: {key}
SELECT store, count(*) AS value, count(*) AS checked, key, count(*) AS timers,
  'timerlog' AS file, max(unit_offset) AS offset
FROM timers WHERE key IS NOT NULL GROUP BY store, key
"""
FAR = """\
-- looks at: timers, stores
-- measures: days until the last timer is due
-- means: It is further ahead than agreed.
-- do: Ask who put it.
-- warn: 30
-- least: 3
-- says: The last of {checked:timer} is due in {value:.0f} days.
-- none: Fewer than {least:timer} wait.
SELECT timers.store, max(timers.due_ms - stores.at_ms) / 86400000 AS value, count(*) AS checked
FROM timers JOIN stores ON stores.store = timers.store
GROUP BY timers.store
"""
KEYS = {
    "good": ("ann", "bob"),
    "once": ("ann", "ann", "bob", "cid"),
    "often": ("ann", *["bob"] * 3, *["cid"] * 4),
}


def make(folder: Path) -> Path:
    """Make stores with these keys, and a folder with both rules; return the stores' folder."""
    for name, keys in KEYS.items():
        clock = ManualClock(START_MS)
        with TimerStore(folder / "stores" / name, config=CONFIG, clock=clock) as store:
            for i, key in enumerate(keys):
                store.put(b"x", key=key, delay=timedelta(hours=1 + i))
            clock.advance(timedelta(0))
    (folder / "rules").mkdir()
    (folder / "rules" / "twice.sql").write_text(TWICE)
    (folder / "rules" / "far.sql").write_text(FAR)
    return folder / "stores"
