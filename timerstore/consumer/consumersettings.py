"""What a consumer was told when it was made, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal

from timerstore.calls.consuming.starting import Start, check_start
from timerstore.consumer.hooks import Hook
from timerstore.consumer.retry_rules import check_backoff
from timerstore.errors import InvalidArgumentError
from timerstore.timelog.bytes.limits import GROUP_BYTES_MAX
from timerstore.values.arguments import check_group
from timerstore.values.kinds import Duration, check_bool, check_int, check_kind, check_list

ATTEMPTS_MAX: Final = 1 << 30
PULL_COUNT_MAX: Final = 4_096
"""Messages pulled at once; more would leave the other threads without any."""
BROADCAST_PREFIX: Final = "%BROADCAST%"
Ordered = Literal[False, True, "key"]


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
    attempts_max: int = field(init=False)
    waits: tuple[timedelta, ...] = field(init=False)  # as `backoff` says

    def __post_init__(self) -> None:
        self.pull_count = check_int(self.pull_count, "pull_count", 1, PULL_COUNT_MAX)
        self.batch_count = check_int(self.batch_count, "batch_count", 1, self.pull_count)
        attempts_max = ATTEMPTS_MAX if self.max_attempts is None else self.max_attempts
        self.attempts_max = check_int(attempts_max, "max_attempts", 0, ATTEMPTS_MAX)
        if self.timeout <= timedelta(0):
            raise InvalidArgumentError(f"timeout is {self.timeout!r}. Pass a positive one.")
        self.start = check_start(self.start)
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
        hooks = check_list(self.hooks, f"hooks is {self.hooks!r}. Pass a Sequence.")
        self.waits, self.hooks = check_backoff(self.backoff), tuple(hooks)

    @property
    def reads_as(self) -> str:
        """The group whose offsets are its own."""
        if not self.broadcast:
            return self.group
        return BROADCAST_PREFIX + self.group + (self.instance and "%" + self.instance)
