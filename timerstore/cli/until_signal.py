"""Commands that go on until a signal ends them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from timerstore.services.world.background import Flag

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def told_to_end(*, hurries: bool = False) -> Iterator[Flag]:
    """Yield a flag that SIGTERM and SIGINT set for as long as the block runs.

    The handler only takes note. `hurries`: a second one does what it did before.
    """
    from timerstore.services.world.background import Flag

    told = Flag()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(*_: object) -> None:
        if hurries:
            as_before()
        told.set()

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield told
    finally:
        as_before()
