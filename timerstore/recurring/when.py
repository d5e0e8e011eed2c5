"""When a recurring job runs: every so often, or by a cron expression in a time zone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from timerstore.arguments import DUE_MS_MAX, whole_ms
from timerstore.errors import InvalidArgumentError

INTERVAL_MIN: Final = timedelta(milliseconds=10)
_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Every:
    """Times that are `interval_ms` apart, from the first one on; made by `every`."""

    interval_ms: int

    def after(self, ms: int, start_ms: int) -> int:
        """Return the first time after `ms`, of those that `start_ms` is one of."""
        return start_ms + ((ms - start_ms) // self.interval_ms + 1) * self.interval_ms

    def last(self, start_ms: int, ms: int) -> int:
        """Return the last time up to `ms`, from `start_ms` on, which is one."""
        return max(start_ms, self.after(ms, start_ms) - self.interval_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in the job's timer."""
        return {"every_ms": self.interval_ms}


@dataclass(frozen=True, slots=True)
class Cron:
    """Times of a cron expression by the clock of a time zone; made by `cron`."""

    expression: str
    tz: str

    def after(self, ms: int, start_ms: int) -> int:
        """Return the first time after `ms`."""
        found = next(self._from(ms), None)
        if found is None:
            raise InvalidArgumentError(f"{self.expression!r} has no time after {ms} any more.")
        return found

    def last(self, start_ms: int, ms: int) -> int:
        """Return the last time up to `ms`, from `start_ms` on, which is one. O(log time)."""
        step_ms = _MINUTE_MS
        while ms - step_ms > start_ms and self._first(ms - step_ms) > ms:
            step_ms *= 2
        found = start_ms
        for each in self._from(max(start_ms, ms - step_ms)):
            if each > ms:
                break
            found = each
        return found

    def _first(self, ms: int) -> int:
        return next(self._from(ms), DUE_MS_MAX)

    def _from(self, ms: int) -> Iterator[int]:
        """Yield the times after `ms`.

        Asked within an hour that a clock shows twice, the library may begin with a time that has
        passed: an expression of fixed times counts the hour once, as its first.
        """
        begin = datetime.fromtimestamp(ms // 1_000, _zone(self.tz))
        for each in _parsed(self.expression, begin):
            found = round(each.astimezone(UTC).timestamp()) * 1_000
            if found > ms:
                yield found

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in the job's timer."""
        return {"cron": self.expression, "tz": self.tz}


Schedule = Every | Cron


def every(interval: timedelta) -> Every:
    """Return a schedule of times that are `interval` apart, the first one after `start`.

    By elapsed time: no time zone, no daylight saving. Raises InvalidArgumentError.

    >>> every(timedelta(minutes=5)).interval_ms
    300000
    """
    if not isinstance(interval, timedelta):
        raise InvalidArgumentError(f"interval is {interval!r}. Pass a datetime.timedelta.")
    if interval < INTERVAL_MIN:
        raise InvalidArgumentError(f"interval is {interval!r}. Pass {INTERVAL_MIN} at least.")
    return Every(whole_ms(interval))


def cron(expression: str, *, tz: str) -> Cron:
    """Return a schedule of the five fields of cron: minute, hour, day, month, day of the week.

    `tz`: whose clock it means, such as "Europe/Berlin" or "UTC". Where clocks change, as Debian's
    cron has it: a fixed time in the hour that is missing runs when the clock has jumped, one in the
    hour that comes twice runs the first time; what has `*` in its minute or hour goes by what the
    clock shows. Needs the extra `recurring`. Raises InvalidArgumentError.

    >>> cron("0 9 * * MON-FRI", tz="Europe/Berlin").tz
    'Europe/Berlin'
    """
    if not isinstance(expression, str):
        raise InvalidArgumentError(f"expression is {expression!r}. Pass a str.")
    schedule = Cron(" ".join(expression.split()), tz)
    begin = datetime.fromtimestamp(1_700_000_000, _zone(tz))
    if next(_parsed(schedule.expression, begin), None) is None:
        raise InvalidArgumentError(f"expression is {expression!r}, which no time meets.")
    return schedule


def _parsed(expression: str, begin: datetime) -> Iterator[datetime]:
    from cronsim import CronSim, CronSimError

    fields = expression.split(" ")
    if len(fields) != 5:
        raise InvalidArgumentError(f"expression is {expression!r}. Write five fields.")
    try:
        times: Iterator[datetime] = CronSim(expression, begin)
    except CronSimError as e:
        raise InvalidArgumentError(f"expression is {expression!r}: {e}. Correct it.") from e
    return times


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as e:
        raise InvalidArgumentError(
            f'tz is {name!r}, which is no time zone here. Pass one such as "Europe/Berlin".'
        ) from e


def read_schedule(content: dict[str, Any]) -> Schedule:
    """Return the schedule that stands in a job's timer.

    >>> read_schedule({"every_ms": 1000})
    Every(interval_ms=1000)
    """
    if "every_ms" in content:
        return every(timedelta(milliseconds=int(content["every_ms"])))
    return cron(str(content["cron"]), tz=str(content["tz"]))
