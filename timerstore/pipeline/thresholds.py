"""The limits from which a rule of distribution warns or fails, out of a TOML file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from timerstore.audit import DISTRIBUTION_RULES, NEVER, Limits, Rule
from timerstore.errors import InvalidArgumentError
from timerstore.pipeline.tablefiles import check_run
from timerstore.values.config import read_toml
from timerstore.values.kinds import check_bool, check_path, meant

DEFAULTS: Final = {rule.name: rule.limits for rule in DISTRIBUTION_RULES}
"""By rule; docs/pipeline.md says what each is measured in."""


def _rate(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= 1e12:
        raise InvalidArgumentError(f"{what} is {value!r}. Use a number from 0.001 to 1e12.")


_CHECKS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "fire_rate_per_s": _rate,
    "fire_bytes_per_s": _rate,
    "in_use": check_bool,
    "baseline": check_run,
}
"""What a run knows besides limits, and what checks it."""


@dataclass(frozen=True)
class Thresholds:
    """The limits of all rules, with what a run knows of the machine.

    >>> Thresholds().limits["load_minute"].warn
    0.5
    """

    limits: Mapping[str, Limits] = field(default_factory=lambda: dict(DEFAULTS))
    fire_rate_per_s: float | None = None
    """Timers that the machine fires in a second; None: nobody has said, and load is not judged."""
    fire_bytes_per_s: float | None = None
    """Bytes of messages that it fires in a second; None: the same."""
    in_use: bool = False
    """A program should have each store open, so `age_stopped` judges those that are closed."""
    baseline: str | None = None
    """The run with which `drift_baseline` compares; None: with none."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            if getattr(self, name) is not None:
                check(getattr(self, name), name)

    @classmethod
    def of(cls, given: Any, rules: Iterable[Rule] = DISTRIBUTION_RULES) -> Thresholds:
        """Return what was given, for these rules: a TOML file, its content, an object or None.

        A file has a table for each rule that differs; docs/pipeline.md shows one. Raises
        InvalidArgumentError.
        """
        if given is None:
            given = cls()
        if isinstance(given, cls):
            limits = {rule.name: given.limits.get(rule.name, rule.limits) for rule in rules}
            return replace(given, limits=limits)
        name, values = "thresholds", given
        if not isinstance(given, Mapping):
            name, values = str(check_path(given)), read_toml(given, "thresholds")
        limits = {rule.name: rule.limits for rule in rules}
        others: dict[str, Any] = {}
        for rule, table in values.items():
            if rule in _CHECKS:
                _CHECKS[rule](table, f"{name}: {rule}")
                others[rule] = table
                continue
            if rule not in limits:
                known = [*limits, *_CHECKS]
                raise InvalidArgumentError(
                    f"{name}: there is no rule {rule!r}. {meant(rule, known)}"
                )
            if not isinstance(table, Mapping):
                raise InvalidArgumentError(f"{name}: {rule} is no table. Write [{rule}].")
            for key, value in table.items():
                if key not in Limits._fields:
                    raise InvalidArgumentError(
                        f"{name}: {rule} has no {key!r}. {meant(key, Limits._fields)}"
                    )
                number = _number(value, f"{name}: {rule}.{key}")
                limits[rule] = limits[rule]._replace(**{key: number})
            if limits[rule].fail < limits[rule].warn:
                raise InvalidArgumentError(
                    f"{name}: {rule} has a fail below its warn. Set fail to warn or more."
                )
        return cls(limits, **others)

    def to_json(self) -> str:
        """Return all of it as JSON; a limit that is never reached is null."""
        told: dict[str, Any] = {
            rule: {key: None if value == NEVER else value for key, value in each._asdict().items()}
            for rule, each in self.limits.items()
        }
        others = {name: getattr(self, name) for name in _CHECKS}
        return json.dumps(told | others)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidArgumentError(f"{what} is {value!r}. Use a number from 0 on, or inf.")
    return float(min(value, sys.float_info.max)) if value != NEVER else NEVER
