"""The settings of a store, every limit with its reason."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Never, get_type_hints

from timerstore.errors import InvalidArgumentError
from timerstore.values.kinds import check_int, check_path

_LOG = logging.getLogger("timerstore")
Durability = Literal["group", "process"]
AdmissionRule = Literal["grow", "wait"]
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL_MS_MAX = 36_500 * 86_400_000
_MS_MAX = 253_402_300_799_999
"""To the end of the year 9999; no other number is larger."""
_MAXIMA = {
    "wheel_slot_count": 1 << 24,  # a file of a gigabyte, as the largest segment
    "commitlog_segment_bytes": 1 << 30,
    "consumequeue_segment_bytes": 1 << 30,
    "timerlog_segment_bytes": 1 << 30,
    "flush_interval_ms": 86_400_000,
    "admission_count_max": 1 << 40,
    "near_count_max": 1 << 32,
    "level_batch_count": 1 << 20,
    "inflight_count_max": 1 << 30,
    "inflight_span_max": 1 << 30,
}
SMALL_BYTES_MIN = 10 << 20
"""Of `Config.small`: with less, segments and wheel leave no room for what is put."""
_ENTRY_BYTES, _UNIT_BYTES, _SLOT_BYTES = 20, 52, 32
_MINIMA = {
    "retention_ms": 0,
    "cleaning_slack_bytes": 0,
    "commitlog_segment_bytes": 1_024,
    "timerlog_segment_bytes": 2 * _UNIT_BYTES,
}
_SWITCHES = ("cleaning", "control", "key_index")
_PRECISIONS_MS = (100, 200, 500, 1000)
_FALSE, _TRUE = ("0", "false", "no", "off"), ("1", "true", "yes", "on")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The settings that few programs need; see `Config`.

    docs/reference/config.md shows what stands at each (`docs/hooks/made.py`):

        space      cleaning, cleaning_factor, cleaning_slack_bytes
        put        admission_count_max, admission_timeout_ms, congestion_slot_count, max_delay_ms
        consume    inflight_count_max, inflight_bytes_max, inflight_span_max, level_batch_count,
                   group_silence_ms
        others     control, key_index
        sizes      commitlog_segment_bytes, consumequeue_segment_bytes, timerlog_segment_bytes,
                   near_count_max
        wheel      precision_ms, roll_window_slots, wheel_slot_count

    >>> Config(tuning=Tuning(cleaning=False)).tuning.cleaning
    False
    """

    precision_ms: int = 1_000
    """Time of one slot: 100, 200, 500 or 1000. Timers fire to the millisecond all the same.

    Change it to less if very many timers are pending for the same second."""

    roll_window_slots: int = 172_800
    """A timer that is due more slots ahead hops on its way: two days of seconds, as in a broker.

    Change it to more, up to `wheel_slot_count` − 60, to write far timers less often."""

    wheel_slot_count: int = 604_800
    """Slots of the wheel: seven days of seconds. A broker has this number compiled in.

    Change it only in tests."""

    commitlog_segment_bytes: int = 64 << 20
    """One file of messages: 64 MiB. No message is larger. Old messages go a file at a time.

    Change it to less for a small store. A broker's is `1 << 30`, unless it is told another."""

    consumequeue_segment_bytes: int = 65_536 * _ENTRY_BYTES
    """One file of queue entries: 65,536 of them. Each topic has at least one.

    Change it to less, a multiple of 20, with thousands of topics."""

    timerlog_segment_bytes: int = 16 << 20
    """One file of timer units: 322,638 of them.

    Change it to less for a small store."""

    cleaning: bool = True
    """Copies pending timers out of old files, so that the files can go. Without it, one timer that
    is due in a month keeps all that was put after it.

    Change it to `False` if timers are due soon and disk is plentiful."""

    cleaning_factor: int = 2
    """Cleaning begins when the log and the timer log are longer than this many times the pending
    bytes. With 2, 102 bytes were copied for 100 that were put, ten timers a second of which one in
    a hundred was due within 30 days.

    Change it to more to write less, or to less to take less disk."""

    cleaning_slack_bytes: int = 64 << 20
    """Nothing is copied below this many bytes more: 64 MiB.

    Change it to less on a small disk."""

    max_delay_ms: int | None = None
    """A put further ahead than this is refused.

    Change it to catch mistakes, such as seconds passed for milliseconds."""

    congestion_slot_count: int | None = None
    """From so many timers of one slot on, some puts into it are refused; at twice as many all are.

    Change it if many timers at one second are more than your handlers can take."""

    admission_count_max: int = 65_536
    """With `admission="wait"`, a put begins to wait when no service has read so many timers of the
    queue on disk: some 20 ms of the services' work, which is still in the page cache.

    Change it to more for larger bursts without a wait."""

    admission_timeout_ms: int | None = None
    """A put that has waited so long for room raises StoreFullError.

    Change it if the caller, such as a web request, must get an answer."""

    control: bool = True
    """Lets processes of the same user ask this one through `control.sock`, as `timerstore health`,
    `top` and `pause` do. Clients of a served store can use it with either value.

    Change it to `False` to forbid that."""

    key_index: bool = True
    """Finds timers by key through the files of `index/`, 24 bytes for each timer with a key.
    Without it, `get_key`, `cancel_key`, `if_absent` and `replace` read all that is pending.

    Change it to `False` if you have very many keys and do not look by key."""

    level_batch_count: int = 1_024
    """How many messages of a delay level one append delivers at most.

    Change it to 1 to deliver each before the next is read."""

    near_count_max: int = 1 << 26
    """How many timers of the next seconds fit in memory, 32 bytes each. Twice that is reserved, as
    addresses: 3.4 GB; where `ulimit -v` sets a limit, an eighth of it at most.

    Change it to more if more fall due within the same two seconds. Those without room fire later,
    and those of one second in parts, each part in the order of due time."""

    inflight_count_max: int = 1_000
    """How many messages of one queue a consumer holds at most, waiting or in a handler. Twenty
    threads with lists of 32 hold 640.

    Change it to more for many threads with large batches: threads × `batch_count` should fit."""

    inflight_bytes_max: int = 100 << 20
    """The memory that their bodies may take: 100 MiB.

    Change it to less in a small container."""

    inflight_span_max: int = 2_000
    """Messages between the oldest one that is not done and the newest that was handed out. A crash
    hands these out again.

    Change it to less if running twice is costly, or to more if a handler may take very long."""

    group_silence_ms: int | None = 7 * 86_400_000
    """`health` warns of a group that did not ask for a topic's messages for so long though some
    wait for it: they stay on the disk until it reads, or is forgotten. None: no warning.

    Change it to less if groups come and go."""


@dataclass(frozen=True, kw_only=True, slots=True, init=False)
class Config(Tuning):
    """How a store is made and run.

    Most programs need at most six settings: durability, flush_interval_ms, max_bytes, retention_ms,
    admission, delay_levels. `tuning` has all others, see `Tuning`; each of them is an attribute
    here too. Sizes, precision and windows are recorded in the store when it is made, and stay. The
    rest may change from one opening to the next. A name ends in its unit. docs/reference/config.md
    says what each means, and when to change it.

    >>> Config(durability="process").durability
    'process'
    """

    durability: Durability = "group"
    """When `put`, `cancel`, `reschedule` or `nack` returns: with `"group"`, its bytes are fsynced,
    and all callers that wait share one fsync. With `"process"`, they are with the operating system:
    safe if the process is killed, not if the machine loses power.

    Change it to `"process"` if you can lose the last half second in a power cut, or if you put many
    timers one by one."""

    flush_interval_ms: int = 500
    """How often a checkpoint is made. It bounds what a power cut takes with `"process"`, and how
    much the next opening reads after a crash.

    Change it to more for fewer writes on a slow disk, or to less for a shorter recovery."""

    max_bytes: int | None = None
    """Puts and reschedules raise StoreFullError before the store takes this much disk, as `du`
    counts it. What is in the store stays, and fires. Firing writes each message once more, so a
    pending timer counts twice: whatever falls due in one second has room below the limit. A few
    small files come on top, a mebibyte at most each.

    Change it on a disk that you share; it may be nine tenths of a disk that the store has for
    itself. The least that works is `Config().least_max_bytes`, 276 MB with the default sizes. For
    less, make the store with `Config.small(max_bytes)`, from 10 MiB: its files and its largest
    message are smaller, and below 256 MiB its wheel is a day long.

    A cancelled timer, and its delete, count like a pending timer until its time has come or
    cleaning has dropped it. With messages of more than a 64th of a commit log segment, what stays
    empty at the ends of segments is counted too. What handlers send back (`nack`, `Retry`) and
    `cancel` are never refused for it: they go beyond the limit."""

    retention_ms: int = 0
    """A consumed message is kept at least this long. At 0 it goes when no group needs it.

    Change it to look back: `timerstore export`, Spark and `timerstore.read` show what is there."""

    admission: AdmissionRule = "grow"
    """What a put does when the services do not keep up. With `"grow"` it goes on, and the queue on
    disk grows. With `"wait"` it waits for room. `cancel` and delay levels do not wait.

    Change it to `"wait"` if timers that are due soon must not wait behind many puts."""

    delay_levels: str = DELAY_LEVELS
    """The delay levels, counted from 1; 1 to 32 durations in `s`, `m`, `h`, `d`. A consumer without
    `backoff` retries through them, from the third on.

    Change it for other levels. What waits already keeps its time. A level is delivered in the order
    of arrival, so a message put to a level that became shorter waits behind older ones."""

    def __init__(
        self,
        *,
        durability: Durability = "group",
        flush_interval_ms: int = 500,
        max_bytes: int | None = None,
        retention_ms: int = 0,
        admission: AdmissionRule = "grow",
        delay_levels: str = DELAY_LEVELS,
        tuning: Tuning | None = None,
        **copied: Never,
    ) -> None:
        """Take the settings. `copied`: all of `Tuning`, as `dataclasses.replace` passes them."""
        if len(copied) != len(_TUNED):
            for name in copied:
                if name in _TUNED:
                    raise TypeError(
                        f"{name} is a setting of Tuning. Pass Config(tuning=Tuning({name}=…))."
                    )
                near = get_close_matches(name, [each.name for each in fields(self)], 1)
                meant = f". Did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"Config has no setting {name!r}{meant}")
        if tuning is not None and not isinstance(tuning, Tuning):
            raise InvalidArgumentError(f"tuning is {tuning!r}. Pass a timerstore.Tuning.")
        given = locals()
        tuned = copied if tuning is None else {name: getattr(tuning, name) for name in _TUNED}
        self._set({name: given[name] for name in _ON_TOP} | tuned)

    def _set(self, given: Mapping[str, Any]) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, given.get(field.name, field.default))
        self._check()

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Config:
        """Make a configuration of settings by name, whichever they are."""
        made = object.__new__(cls)
        made._set(values)
        return made

    @property
    def tuning(self) -> Tuning:
        """The settings that few programs need."""
        return Tuning(**{name: getattr(self, name) for name in _TUNED})

    def _check(self) -> None:
        """Refuse what cannot work, and say what can."""
        hints = _hints()
        for field in fields(self):
            value = getattr(self, field.name)
            if hints[field.name] in (int, int | None) and value is not None:
                low, high = _MINIMA.get(field.name, 1), _MAXIMA.get(field.name, _MS_MAX)
                whole = check_int(value, field.name, low, high)
                object.__setattr__(self, field.name, whole)

        def is_word(value: object, *words: str) -> bool:
            return isinstance(value, str) and value in words

        window_max = self.wheel_slot_count - 60
        for name, is_good, what in (
            *((each, isinstance(getattr(self, each), bool), "True or False") for each in _SWITCHES),
            ("durability", is_word(self.durability, "group", "process"), '"group" or "process"'),
            ("admission", is_word(self.admission, "grow", "wait"), '"grow" or "wait"'),
            ("precision_ms", self.precision_ms in _PRECISIONS_MS, "100, 200, 500 or 1000"),
            (
                "roll_window_slots",
                2 <= self.roll_window_slots <= max(2, window_max),
                f"2 to {window_max}",
            ),
            ("wheel_slot_count", self.wheel_slot_count % 64 == 0, "a multiple of 64"),
            (
                "consumequeue_segment_bytes",
                self.consumequeue_segment_bytes % _ENTRY_BYTES == 0,
                f"a multiple of {_ENTRY_BYTES}",
            ),
        ):
            if not is_good:
                raise InvalidArgumentError(f"{name} is {getattr(self, name)!r}. Use {what}.")
        self.delay_levels_ms()

    @property
    def least_max_bytes(self) -> int:
        """The least `max_bytes` with which puts go on once what was put is consumed.

        Three commit log segments, of which two are kept, two of the timer log, two of a queue, and
        the wheel.
        """
        segments = 3 * self.commitlog_segment_bytes + 2 * self.timerlog_segment_bytes
        wheel_bytes = 2 * self.wheel_slot_count * _SLOT_BYTES
        return segments + 2 * self.consumequeue_segment_bytes + wheel_bytes

    def check_max_bytes(self) -> None:
        """Raise InvalidArgumentError if `max_bytes` can never work with these sizes."""
        if self.max_bytes is not None and self.max_bytes < self.least_max_bytes:
            raise InvalidArgumentError(
                f"max_bytes is {self.max_bytes}, but with the segments and the wheel of this "
                f"store at least {self.least_max_bytes} is needed. Use that or more, or make a "
                "new store with Config.small(max_bytes)."
            )

    @classmethod
    def small(cls, max_bytes: int, **settings: Any) -> Config:
        """Make the configuration of a store that should take little disk: 10 MiB or more.

        Segments are smaller, down to 1 MiB, and with them the largest message; below 256 MiB the
        wheel is a day long, so that a timer further ahead is written again twice a day. A pending
        timer counts twice, see `Config.max_bytes`. `settings`: any others.
        """
        max_bytes = check_int(max_bytes, "max_bytes", SMALL_BYTES_MIN, _MS_MAX)
        segment_bytes = 1 << max(20, min(26, max_bytes.bit_length() - 5))
        sizes: dict[str, Any] = {
            "max_bytes": max_bytes,
            "commitlog_segment_bytes": segment_bytes,
            "timerlog_segment_bytes": segment_bytes // 4 // _UNIT_BYTES * _UNIT_BYTES,
            "consumequeue_segment_bytes": min(65_536, segment_bytes // 64) * _ENTRY_BYTES,
            "cleaning_slack_bytes": min(cls().cleaning_slack_bytes, max_bytes // 8),
        }
        if max_bytes < 256 << 20:
            sizes |= {"wheel_slot_count": 86_400, "roll_window_slots": 43_200}
        made = cls.from_mapping(sizes | _flat(settings), "Config.small")
        made.check_max_bytes()
        return made

    def delay_levels_ms(self) -> list[int]:
        """Return the duration of each delay level in ms."""
        levels = []
        if not isinstance(self.delay_levels, str):
            raise InvalidArgumentError(
                f'delay_levels is {self.delay_levels!r}. Pass a str such as "1s 30s 2h 1d".'
            )
        for part in self.delay_levels.split():
            number, unit = part[:-1], part[-1]
            if not number.isascii() or not number.isdigit() or unit not in _UNITS_MS:
                raise InvalidArgumentError(
                    f"delay_levels contains {part!r}. Write each level as a whole number and one "
                    "of s, m, h, d."
                )
            delay_ms = int(number) * _UNITS_MS[unit] if len(number) < 10 else 0
            if not 0 < delay_ms <= _LEVEL_MS_MAX:
                raise InvalidArgumentError(
                    f"delay_levels contains {part!r}. Use levels from 1s to 36500d."
                )
            levels.append(delay_ms)
        if not 1 <= len(levels) <= 32:
            raise InvalidArgumentError(f"delay_levels has {len(levels)} levels. Use 1 to 32.")
        return levels

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str) -> Config:
        """Make a configuration of named values; `source` is named in errors."""
        known = {field.name for field in fields(cls)}
        flat = _flat(values)
        for name in flat:
            if name not in known:
                raise InvalidArgumentError(
                    f"{source} sets {name!r}, which is no setting. Use {', '.join(sorted(known))}."
                )
        return cls._of(flat)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Config:
        """Read the table [timerstore] of a TOML file, or the whole file if it has none."""
        name, values = os.fspath(check_path(path)), read_toml(path, "settings")
        table = values.get("timerstore", values)
        if not isinstance(table, dict):
            raise InvalidArgumentError(
                f"{name} sets timerstore to a value. Write it as a table, [timerstore]."
            )
        return cls.from_mapping(table, name)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read `TIMERSTORE_*` variables, such as TIMERSTORE_DURABILITY=process.

        A variable that is no setting is named in the log and ignored.
        """
        hints = _hints()
        values: dict[str, Any] = {}
        for name, text in (os.environ if environ is None else environ).items():
            if not name.startswith("TIMERSTORE_"):
                continue
            field = name.removeprefix("TIMERSTORE_").lower()
            if field not in hints:
                near = get_close_matches(field, hints, 1)
                meant = f"; did you mean TIMERSTORE_{near[0].upper()}?" if near else ""
                _LOG.warning("%s is no setting and is ignored%s", name, meant)
                continue
            values[field] = text
            if hints.get(field) is bool:
                if text.lower() not in _TRUE + _FALSE:
                    raise InvalidArgumentError(f"{name} is {text!r}. Set it to true or false.")
                values[field] = text.lower() in _TRUE
            elif hints.get(field) in (int, int | None):
                try:
                    values[field] = int(text)
                except ValueError as e:
                    raise InvalidArgumentError(f"{name} is {text!r}. Set a whole number.") from e
        return cls.from_mapping(values, "The environment")


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name, those of `tuning` among them, be that a table or a `Tuning`."""
    flat = dict(values)
    tuning = flat.pop("tuning", None)
    if isinstance(tuning, Tuning):
        own = {name: getattr(tuning, name) for name in _TUNED}
        return {name: own[name] for name in own if own[name] != getattr(_PLAIN, name)} | flat
    if tuning is not None and not isinstance(tuning, Mapping):
        raise InvalidArgumentError(f"tuning is {tuning!r}. Pass a timerstore.Tuning, or a table.")
    return {**(tuning or {}), **flat}


@cache
def _hints() -> dict[str, Any]:
    """Return the types of the settings: to find them out takes milliseconds."""
    return get_type_hints(Config)


_TUNED = tuple(field.name for field in fields(Tuning))
_PLAIN = Tuning()
_ON_TOP = tuple(field.name for field in fields(Config) if field.name not in _TUNED)


# --- a TOML file that a person wrote

TOML_BYTES_MAX: Final = 1 << 20
"""More is some other file."""


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Return what a file says; `what` it should hold is named if it is too long.

    Raises InvalidArgumentError.
    """
    import tomllib  # few programs have a file of settings

    name = str(check_path(path))
    try:
        with Path(name).open("rb") as file:
            data = file.read(TOML_BYTES_MAX + 1)
        if len(data) > TOML_BYTES_MAX:
            raise InvalidArgumentError(f"{name} is larger than {what} can be. Pass another file.")
        return tomllib.loads(data.decode())
    except OSError as e:
        raise InvalidArgumentError(
            f"{name} cannot be read ({e.strerror}). Pass the path of a TOML file."
        ) from e
    except InvalidArgumentError:
        raise
    except (ValueError, RecursionError) as e:  # also a number of more digits than Python takes
        raise InvalidArgumentError(f"{name} is no TOML: {e}. Correct it.") from e
