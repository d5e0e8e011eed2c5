"""One page of what is pending, read in a bounded pass."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from timerstore.watching.sections import parts_of

if TYPE_CHECKING:
    from timerstore.calls.pending.timers import Timer
    from timerstore.watching.any_store import AnyStore

ROWS: Final = 50
"""Of one page."""
READ_MAX: Final = 20_000
PASS_S: Final = 1.0
"""So many timers, and so long, one page reads; what it has not come to the next one reads."""
BODY_BYTES: Final = 1_000
"""Of a body that is kept: one may have 4 MiB."""
SEARCHED_BYTES: Final = 16 << 10
"""Of a body in which a text is looked for: Python decodes it while all else waits."""
SKIP_MAX: Final = 100_000
"""Timers of one millisecond that earlier pages have shown, and that are read once more."""


def list_some(
    store: AnyStore, *, text: str, topic: str | None, key: str | None, skip: int, **bounds: Any
) -> tuple[list[Timer], tuple[int, int] | None]:
    """Return some timers by due time, and where to go on: the next `start_ms`, `skip`.

    `skip`: so many that are due at `start_ms` were looked at before; `bounds`: those of `pending`.
    If timers of that millisecond fire between two pages, others of it are passed over.
    """
    # By a topic and a key the store finds timers; by either alone it would read on without a bound.
    both: Any = {"topic": topic, "key": key} if topic is not None and key is not None else {}
    listing = store.pending(**bounds, **both)
    text, until_s = text.casefold(), None
    rows: list[Timer] = []
    read, at_ms, seen = 0, -1, 0
    for timer in listing:
        if timer.due_ms != at_ms:
            at_ms, seen = timer.due_ms, 0
        if seen < skip and at_ms == bounds["start_ms"]:
            seen += 1
            continue
        until_s = until_s or time.monotonic() + PASS_S
        if len(rows) == ROWS or read == READ_MAX or (read and time.monotonic() > until_s):
            return rows, (at_ms, seen)
        read, seen = read + 1, seen + 1
        fits = topic in (None, timer.topic) and key in (None, timer.key)
        if fits and any(text in each for each in parts_of(timer, SEARCHED_BYTES)):
            rows.append(replace(timer, body=timer.body[:BODY_BYTES]))
    return rows, None
