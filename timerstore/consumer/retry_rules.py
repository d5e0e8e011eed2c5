"""The rules of retrying: what becomes of a message that a handler has had.

They are a table in docs/consumer.md, which the tests read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from timerstore.errors import InvalidArgumentError

FIRST_LEVEL: Final = 3
"""The delay level after the first failure; each further one waits a level more."""
TIMEOUT_LEVEL: Final = 3
"""The delay level after a handler took too long."""
DEAD: Final = -1


@dataclass(frozen=True, slots=True)
class Retry:
    """What a handler returns for messages that shall come again.

    `delay_level`: after which of the store's delay levels, counted from 1; 0: 3 + the attempts so
    far; below 0: never, it goes to the dead letters. `ack_index`: of a list, how many succeeded:
    `deliveries[:ack_index]` are acknowledged, the rest comes again.

    >>> Retry(delay_level=5)
    Retry(delay_level=5, ack_index=0)
    """

    delay_level: int = 0
    ack_index: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("delay_level", "ack_index"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidArgumentError(f"{name} is {value!r}. Pass an int.")
        if self.ack_index < 0:
            raise InvalidArgumentError(
                f"ack_index is {self.ack_index}. Pass how many of the list succeeded."
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call of a handler ended; hooks are told it.

    `ack_count`: how many of its messages succeeded. `delay_level`: what the handler asked for the
    others, None where all succeeded. `error`: what it raised. `timed_out`: it took too long, and
    what it does from now on counts for nothing. `elapsed_ms`: how long it took.
    """

    ack_count: int
    delay_level: int | None
    error: Exception | None
    timed_out: bool
    elapsed_ms: float


def level_after(attempt: int, delay_level: int, max_attempts: int) -> int:
    """Return the delay level at which a message comes again, or DEAD.

    `attempt`: the one that failed, from 0; `delay_level`: what the handler asked for.

    >>> [level_after(attempt, 0, 16) for attempt in (0, 1, 15, 16)]
    [3, 4, 18, -1]
    """
    if delay_level < 0 or attempt >= max_attempts:
        return DEAD
    return delay_level or FIRST_LEVEL + attempt
