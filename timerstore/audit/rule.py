"""A rule of distribution: a query, whose head says what it means.

    -- looks at: slot_load
    -- measures: units in the longest chain
    -- means: All units of a chain are read before its slot fires.
    -- do: Spread the due times.
    -- warn: 100000
    -- says: The longest chain has {depth:unit}.
    -- none: The wheel holds no unit ahead.
    SELECT store, depth AS value, …

The file's name is the rule's. A line of the head that begins with more spaces goes on with the one
before it; a line `--` ends the head, and other comments may follow. The query returns `store`,
`value`, which is compared with the limits, `checked`, how many were looked at, and what the
sentences name. Of each store the row with the largest value speaks; if `file` is not null, rows
name places by `file` and `offset`. A query uses what DuckDB and Spark share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

from timerstore.errors import InvalidArgumentError
from timerstore.values.kinds import meant

NEVER: Final = math.inf
_KEYS: Final = (
    "looks at", "measures", "means", "do", "warn", "fail", "least", "says", "none", "place",
)  # fmt: skip
_NEEDED: Final = ("looks at", "measures", "means", "do", "warn", "says", "none")


class Limits(NamedTuple):
    """A value above `warn` warns, one above `fail` fails; below `least` nothing is judged."""

    warn: float
    fail: float = NEVER
    least: float = 0

    @property
    def fail_or_none(self) -> float | None:
        """From where it fails; None: never."""
        return None if self.fail == NEVER else self.fail


@dataclass(frozen=True)
class Query:
    """A query over tables, by their names."""

    name: str
    looks_at: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Rule(Query):
    """A rule; docs/pipeline.md lists all."""

    measures: str
    """What its value is, with its unit."""
    means: str
    """What is so if it warns or fails."""
    do: str
    """What to do then."""
    says: str
    """A sentence, to be filled with a row."""
    none: str
    """The sentence if it returns no row about a store."""
    place: str
    limits: Limits
    file: str
    """Where it was read, as errors name it."""


def read_rule(name: str, content: str, file: str | None = None) -> Rule:
    """Read a rule out of its file. Raises InvalidArgumentError."""
    file = f"{name}.sql" if file is None else file
    head, text = read_head(file, content)
    for key in _NEEDED:
        if key not in head:
            raise InvalidArgumentError(f"{file} does not say {key!r}. Write -- {key}: …")
    limits = Limits(**{key: _number(head[key], file) for key in Limits._fields if key in head})
    rest = {key: head.get(key, "") for key in ("measures", "means", "do", "says", "none", "place")}
    return Rule(name, _names(head["looks at"]), text, limits=limits, file=file, **rest)


def read_head(file: str, content: str, keys: Collection[str] = _KEYS) -> tuple[dict[str, str], str]:
    """Return the head by its keys, and what follows. Raises InvalidArgumentError."""
    lines = content.splitlines(keepends=True)
    head: dict[str, str] = {}
    key = ""
    for number, line in enumerate(lines):
        if line.startswith("--   ") and key:
            head[key] += f" {line[2:].strip()}"
            continue
        if not line.startswith("-- "):
            return head, "".join(lines[number:])
        key, _, value = line.removeprefix("-- ").partition(": ")
        if key not in keys:
            raise InvalidArgumentError(f"{file} says {key!r} in its head. {meant(key, keys)}")
        head[key] = value.strip()
    raise InvalidArgumentError(f"{file} has no query. Write one below its head.")


def _number(text: str, file: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(f"{file} has the limit {text!r}. Use a number.") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(","))


def _read_table(name: str, content: str) -> Query:
    head, text = read_head(f"{name}.sql", content)
    return Query(name, _names(head["looks at"]), text)


def sql_files(folder: Traversable) -> dict[str, str]:
    """Return what the files of SQL in a folder contain, by their names without .sql, in order."""
    found = {each.name: each for each in folder.iterdir() if each.name.endswith(".sql")}
    return {name.removesuffix(".sql"): found[name].read_text("utf-8") for name in sorted(found)}


OURS: Final = files("timerstore.audit")
DISTRIBUTION_RULES: Final = tuple(
    read_rule(name, text) for name, text in sql_files(OURS / "rules").items()
)
"""All of distribution, by name."""
_TABLES: Final = {
    name: _read_table(name, text) for name, text in sql_files(OURS / "tables").items()
}
"""Tables that are queries themselves."""


def made_for(names: Iterable[str]) -> dict[str, Query]:
    """Return the tables that must be made before a query that looks at these, in their order."""
    found: dict[str, Query] = {}
    for name in names:
        if name in _TABLES:
            found |= made_for(_TABLES[name].looks_at) | {name: _TABLES[name]}
    return found
