"""All metrics, with the statistics that they are read from; both exporters go over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from timerstore.errors import StoreClosedError
from timerstore.watching.anystore import AnyStore
from timerstore.watching.groupmetrics import GROUP_METRICS, shown_rows
from timerstore.watching.metric import Metric, Told
from timerstore.watching.storemetrics import STORE_METRICS
from timerstore.watching.topicmetrics import TOPIC_METRICS, series_of

METRICS: Final[tuple[Metric, ...]] = (*STORE_METRICS, *TOPIC_METRICS, *GROUP_METRICS)


def read_told(known: Callable[[], AnyStore | None]) -> Told | None:
    """Return what metrics are read from; None once the store is closed, or gone.

    It is what `stats().to_dict()` has, with the topics and groups that are shown. `known`: a
    weak reference to the store.
    """
    store = known()
    if store is None:
        return None
    try:
        stats = store.stats().to_dict()
    except StoreClosedError:
        return None
    groups, left_out = shown_rows(stats["groups"])
    shown = {"groups": groups, "groups_left_out": left_out}
    return {**stats, "topics": series_of(stats["topics"]), **shown}
