"""Rates, lateness and what is pending in the last hour, as curves."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from timerstore.watching.sections import Earlier, lateness, rates

if TYPE_CHECKING:
    from timerstore.watching.any_store import AnyStore

EVERY_S: Final = 10.0
KEPT: Final = 360
"""Looks that are kept: an hour of them."""
_PATIENCE: Final = 50
"""So many times as long as a look took, the next one waits: of very many topics one is long."""
_CURVES: Final = {
    "a second": ("put", "fired", "handled"),
    "lateness": ("p50", "p99", "max"),
    "pending": ("pending",),
}


class History:
    """Looks at a store again and again. One thread at a time looks, or draws."""

    def __init__(self, store: AnyStore) -> None:
        self._store = store
        self._looks: deque[tuple[int, dict[str, float]]] = deque(maxlen=KEPT)
        self._before: Earlier | None = None
        self._drawn: dict[str, str] | None = None

    def look(self) -> float:
        """Look once, and return in how many seconds to look again. Raises what `stats` raises."""
        self._drawn, begun_s = None, time.monotonic()
        stats: dict[str, Any] = self._store.stats().to_dict()
        if self._before is not None:
            before = Earlier(self._before.stats, max(1e-3, begun_s - self._before.passed_s))
            values = rates(stats, before) | {"pending": stats["pending_count"]}
            if values["fired"]:
                values |= zip(_CURVES["lateness"], lateness(stats, before), strict=True)
            self._looks.append((time.time_ns() // 1_000_000, values))
        self._before = Earlier(stats, begun_s)  # when it was: how long ago is not known yet
        return max(EVERY_S, _PATIENCE * (time.monotonic() - begun_s))

    def curves(self) -> dict[str, str]:
        """Return each curve as an element of HTML, by its title; none before the second look.

        Drawing takes a tenth of a second of Python, so it is done once for each look.
        """
        from timerstore.pipeline.charts import image, lines

        if self._drawn is None:
            images = {}
            for title, names in _CURVES.items():
                looks = [each for each in self._looks if names[0] in each[1]]
                series = {name: [(ms, values[name]) for ms, values in looks] for name in names}
                if looks:
                    drawn = lines(series, is_lateness=title == "lateness")
                    images[title] = image(drawn, title)
            self._drawn = images
        return self._drawn
