"""What a consumer was told: its settings, the rules of retries, hooks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, Literal, Protocol, Self, get_args

from timerstore.calls.consuming.consuming import Start, check_start
from timerstore.calls.consuming.delivery import DEAD, Delivery, Wait, said_by, shown_error
from timerstore.calls.consuming.turns import Rate
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.bytes.limits import GROUP_BYTES_MAX
from timerstore.values.check_arguments import check_group, given_delay
from timerstore.values.kinds import (
    Duration,
    as_int,
    check_bool,
    check_choice,
    check_duration,
    check_int,
    check_kind,
    check_list,
)

# --- the rules of that; docs/consumer.md has them as a table
#
# docs/consumer.md shows them; tests/consumer/rules.md has all of them, and is played.


FIRST_LEVEL: Final = 3
"""The delay level after the first failure; each further one waits a level more."""
TIMEOUT_LEVEL: Final = 3
"""The delay level after a handler took too long."""
DELAY_MAX: Final = timedelta(days=365 * 1_000)
"""A longer wait is a mistake: it would end after the last time that a timer can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What a handler returns for messages that must come again. Each value is passed by its name.

    `delay`: how long they wait, a timedelta or seconds, or `delay_ms`. `delay_level`: instead of a
    delay, the level of the store, counted from 1. 0: level 3 + the attempts so far, or what the
    consumer's `backoff` says. Below 0: never; they become dead letters. `ack_index`: of a list, how
    many succeeded: `deliveries[:ack_index]` are acknowledged, the others come again. `reason`: why,
    for the log and the dead letter.

    >>> Retry(delay=timedelta(seconds=90), reason="the server asked for it").delay.seconds
    90
    """

    delay_level: int = 0
    ack_index: int = 0
    delay: Duration | None = None
    reason: str = ""
    delay_ms: int | None = None

    def __new__(cls, *unnamed: object, **_named: object) -> Self:
        """Refuse a value without a name: it could be a level, or seconds."""
        if unnamed:
            raise InvalidArgumentError(
                f"Retry({unnamed[0]!r}) does not say what {unnamed[0]!r} is. Write "
                f"Retry(delay={unnamed[0]!r}) for seconds, or Retry(delay_level={unnamed[0]!r})."
            )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name in ("delay_level", "ack_index"):
            value = as_int(getattr(self, name))
            if value is None:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)!r}. Pass an int.")
            object.__setattr__(self, name, value)
        if self.ack_index < 0:
            raise InvalidArgumentError(
                f"ack_index is {self.ack_index}. Pass how many messages of the list succeeded, "
                "counted from its start."
            )
        check_kind(self.reason, str, "reason")
        if self.delay is not None or self.delay_ms is not None:
            delay = check_wait(given_delay(self.delay, self.delay_ms), "delay")
            object.__setattr__(self, "delay", delay)
            object.__setattr__(self, "delay_ms", None)
            if self.delay_level != 0:
                raise InvalidArgumentError(
                    "delay and delay_level exclude each other. Pass one of them."
                )


_init = inspect.signature(Retry.__init__)
Retry.__signature__ = _init.replace(  # type: ignore[attr-defined]
    parameters=list(_init.parameters.values())[1:], return_annotation=inspect.Signature.empty
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call of a handler ended; hooks get it.

    `ack_count`: how many of its messages succeeded. `delay_level`, `delay`, `reason`: what the
    handler asked for the others; `delay_level` is None if all succeeded. `error`: what it raised.
    `timed_out`: it took too long, and its result does not count. `elapsed_ms`: how long it took.
    """

    ack_count: int
    delay_level: int | None
    error: BaseException | None
    timed_out: bool
    elapsed_ms: float
    delay: timedelta | None = None
    reason: str = ""


def wait_after(
    attempt: int, outcome: Outcome, max_attempts: int, backoff: Sequence[timedelta] = ()
) -> Wait:
    """Return the delay or the level for which a message waits before it comes again, or DEAD.

    `attempt`: the one that failed, from 0; `backoff`: how long after the first failure, after the
    second …, the last one for all further ones.

    >>> failed = Outcome(0, 0, None, False, 1.0)
    >>> [wait_after(attempt, failed, 16) for attempt in (0, 1, 15, 16)]
    [3, 4, 18, -1]
    """
    asked = outcome.delay_level or 0
    if asked < 0 or attempt >= max_attempts:
        return DEAD
    if outcome.delay is not None:
        return outcome.delay
    if backoff and (asked == 0 or outcome.timed_out):
        return backoff[min(attempt, len(backoff) - 1)]
    return asked or FIRST_LEVEL + attempt


def check_backoff(backoff: Any) -> tuple[timedelta, ...]:
    """Return a consumer's own waits as a tuple, or refuse them; none of them: the delay levels."""
    if backoff is None:
        return ()
    wanted = (
        "Pass a list: the wait after the first failure, after the second, …. The last wait is used "
        "for all later failures."
    )
    if not isinstance(backoff, Sequence) or not backoff:
        raise InvalidArgumentError(f"backoff is {backoff!r}. {wanted}")
    return tuple(check_wait(each, "backoff") for each in check_list(backoff, "backoff", wanted))


def check_wait(value: Any, what: str) -> timedelta:
    """Return how long a message must wait, or refuse it."""
    length = check_duration(value, what)
    if not timedelta(0) <= length <= DELAY_MAX:
        raise InvalidArgumentError(
            f"{what} is {value!r}. Pass a length of time from 0 to {DELAY_MAX.days:,} days."
        )
    return length


# --- a program's code around each call


log = logging.getLogger("timerstore")


class Hook(Protocol):
    """What a consumer calls around its handlers, in the thread that runs them.

    An exception in a hook is logged, also one that is no Exception; it changes nothing for the
    message. KeyboardInterrupt stops the consumer.
    """

    def before(self, deliveries: list[Delivery]) -> None:
        """Act before the handler is called; `deliveries` is a list also if it gets one."""

    def after(self, deliveries: list[Delivery], outcome: Outcome) -> None:
        """Act once it is known what became of the messages.

        After a time-out that is in another thread, while the handler still runs.
        """


def call_before(hooks: Sequence[Hook], deliveries: list[Delivery]) -> None:
    """Call all hooks, in their order."""
    for hook in hooks:
        _call("before a handler was called", hook, hook.before, list(deliveries))


def call_after(hooks: Sequence[Hook], deliveries: list[Delivery], outcome: Outcome) -> None:
    """Call all hooks, the last one first."""
    for hook in reversed(hooks):
        _call("after a handler had ended", hook, hook.after, list(deliveries), outcome)


def _call(when: str, hook: Hook, act: Callable[..., None], *given: Any) -> None:
    try:
        act(*given)
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        said = said_by(hook, repr) or type(hook).__qualname__
        log.error("the hook %s failed %s", said, when, exc_info=shown_error(e))


ATTEMPTS_MAX: Final = 1 << 30
PULL_COUNT_MAX: Final = 4_096
"""Messages pulled at once; more would leave the other threads without any."""
BROADCAST_PREFIX: Final = "%BROADCAST%"
Ordered = Literal[False, True, "key"]
ExpiredRule = Literal["drop", "dead_letter"]


@dataclass(slots=True, kw_only=True)
class ConsumerSettings:
    """The arguments that all consumers have; `Consumer` says what each is for."""

    group: str
    batch_count: int
    pull_count: int
    max_attempts: int | None
    backoff: Sequence[Duration] | None
    timeout: timedelta
    broadcast: bool
    instance: str
    ordered: Ordered
    hooks: Sequence[Hook]
    start: Start
    rate: str | None
    burst: int | None
    rate_by: str | None
    expired: ExpiredRule = "drop"
    turns: Rate | None = field(init=False)  # as these three say
    attempts_max: int = field(init=False)
    waits: tuple[timedelta, ...] = field(init=False)  # as `backoff` says

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Take them from among the arguments of a consumer, by their names."""
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})

    def __post_init__(self) -> None:
        self.timeout = check_duration(self.timeout, "timeout")
        self.pull_count = check_int(self.pull_count, "pull_count", 1, PULL_COUNT_MAX)
        self.batch_count = check_int(self.batch_count, "batch_count", 1, self.pull_count)
        attempts_max = ATTEMPTS_MAX if self.max_attempts is None else self.max_attempts
        self.attempts_max = check_int(attempts_max, "max_attempts", 0, ATTEMPTS_MAX)
        if self.timeout <= timedelta(0):
            raise InvalidArgumentError(f"timeout is {self.timeout!r}. Pass a positive one.")
        self.start = check_start(self.start)
        check_choice(self.expired, "expired", get_args(ExpiredRule))
        check_group(self.group)
        check_kind(self.instance, str, "instance")
        check_bool(self.broadcast, "broadcast")
        check_kind(self.hooks, Sequence, "hooks")
        if not isinstance(self.ordered, bool | str) or self.ordered not in (True, False, "key"):
            raise InvalidArgumentError(f'ordered is {self.ordered!r}. Pass True, "key", or False.')
        if self.ordered and (self.broadcast or self.batch_count > 1):
            raise InvalidArgumentError(
                "ordered goes with neither batch_count nor broadcast, because an ordered "
                "consumer hands out one message of a line at a time. Leave them out."
            )
        self.turns = Rate.of(self.rate, self.burst, self.rate_by)
        if self.turns is not None and self.ordered:
            raise InvalidArgumentError(
                "rate does not go with ordered, because an ordered consumer says itself when each "
                "message begins. Leave one of them out: with rate_by the messages of each key are "
                "handed out in their order."
            )
        if self.instance and not self.broadcast:
            raise InvalidArgumentError(
                "instance goes only with broadcast=True. Leave it out, or pass broadcast=True."
            )
        if self.instance:
            check_group(self.instance, "instance")
            room = GROUP_BYTES_MAX - len(self.reads_as) + len(self.instance)
            if len(self.instance) > room:
                raise InvalidArgumentError(
                    f"instance is {len(self.instance)} characters long. Use {room} at most beside "
                    "the name of this group."
                )
        check_group(self.reads_as)
        if self.broadcast and self.buries_expired:
            raise InvalidArgumentError(
                'expired="dead_letter" and broadcast exclude each other, because a broadcast has '
                "no dead letters. Leave one out."
            )
        hooks = check_list(self.hooks, "hooks", "Pass a Sequence.")
        self.waits, self.hooks = check_backoff(self.backoff), tuple(hooks)

    @property
    def buries_expired(self) -> bool:
        """Whether what expired becomes a dead letter."""
        return self.expired == "dead_letter"

    @property
    def reads_as(self) -> str:
        """The group whose offsets are its own."""
        if not self.broadcast:
            return self.group
        return BROADCAST_PREFIX + self.group + (self.instance and "%" + self.instance)
