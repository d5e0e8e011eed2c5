"""What services share: rings, their records, how late timers were."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.services.alone import DELIVER_LEVELS, Alone
from timerstore.services.state import INFO_UNLINKED, SERVICE_NAMES
from timerstore.services.world import (
    LATENESS_BUCKETS,
    bucket_lateness_ms,
    lateness_bucket,
    note_lost,
    service_of,
)
from timerstore.timelog.jit.kernel import kernel


@kernel
def _bucket(late_ms: int) -> int:
    return lateness_bucket(late_ms)


@kernel
def _note(world: Any, service: int, message: int) -> None:
    note_lost(service_of(world, service), message, INFO_UNLINKED)


@given(st.integers(0, 1 << 45) | st.integers(0, 3_000))
def test_a_bucket_holds_what_is_not_less_than_it_says(late_ms: int) -> None:
    bucket = _bucket(late_ms)
    least_ms = bucket_lateness_ms(bucket)
    assert least_ms <= late_ms
    if bucket < LATENESS_BUCKETS - 1:
        assert late_ms < bucket_lateness_ms(bucket + 1)
    if late_ms < 256:
        assert least_ms == late_ms  # exact
    elif bucket < LATENESS_BUCKETS - 1:
        assert late_ms - least_ms <= late_ms // 8  # eight steps for each doubling


def test_what_was_passed_by_is_noted_where_its_service_says_so() -> None:
    with Alone(DELIVER_LEVELS) as alone:
        world = alone.engine.world
        for service in range(len(SERVICE_NAMES)):
            for i in range(service):
                _note(world, service, 100 * service + i)
        for service in range(len(SERVICE_NAMES)):
            alone.service = service
            assert alone.lost() == [100 * service + i for i in range(service)]
            assert alone.unreadable_count == service


def test_services_share_no_memory_of_their_own() -> None:
    """A cache line for each: one's writes do not slow another one down."""
    with Alone(DELIVER_LEVELS) as alone:
        for name in ("found", "scratch", "lost", "clock"):
            arrays = [getattr(each, name) for each in alone.engine.services]
            for i, one in enumerate(arrays):
                assert not any(np.shares_memory(one, other) for other in arrays[:i])
