"""Rules: queries whose heads say what they mean. First those of distribution, and of the user:

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

A rule of consistency returns the places at which it fails, as `asking.py` has them:

    -- of: timers
    -- looks at: alike of fates WHERE kind = 0
    -- counts: a timer's message
    -- says: It is pending, was fired, was rolled, or is cancelled.
    -- means: The timer was lost.
    -- severity: error
    SELECT 'commitlog' AS file, …

Each row that it looks at is one of what it counts, and was checked; with `of` as many as that
column says. A rule without a query is asked of the bytes while they are read: by the other files of
`timerstore/validation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Formatter
from typing import Any, Final, Literal, NamedTuple

from timerstore.errors import InvalidArgumentError
from timerstore.values.amounts import SECOND_MS, counted, moment, rough_span, share, shown_bytes
from timerstore.values.kinds import meant

_FORMS: Final[Mapping[str, Callable[[Any], str]]] = {
    "bytes": lambda count: shown_bytes(int(count)),
    "minute": lambda ms: f"{moment(ms):%-d %b %Y %H:%M}",
    "second": lambda ms: _second(int(ms)),
    "share": share,
    "slot": lambda ms: "second" if ms == SECOND_MS else rough_span(ms),
    "span": rough_span,
}


def _second(ms: int) -> str:
    text = f"{moment(ms):%-d %b %Y %H:%M:%S}"
    return f"{text}.{ms % SECOND_MS:03d}" if ms % SECOND_MS else text


def readable(text: str) -> str:
    """Return a text, of a damaged topic say, with a mark for each byte that is no UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Filler(Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if format_spec in _FORMS:
            return _FORMS[format_spec](value)
        if len(format_spec) > 1 and format_spec[0].isalpha():
            return counted(value, format_spec)
        return super().format_field(value, format_spec)


def filled(sentence: str, row: Mapping[str, Any]) -> str:
    """Return a sentence with the values of a row in it.

    After the colon stands how a value is shown: `bytes`, `share`, `span` of ms, `minute` or
    `second` of a time in ms, `slot` of its length in ms, a form of Python's, or the name of what
    is counted.

    >>> filled("{count:timer} in {ms:span}, {part:share}", {"count": 2, "ms": 1500, "part": 0.5})
    '2 timers in 1.5 s, 50 %'
    """
    return _Filler().vformat(sentence, (), row)


CONSISTENCY: Final = "consistency"
DISTRIBUTION: Final = "distribution"
OWN: Final = "own"
"""Of rules that the user has written."""
GROUPS: Final = ("files", "slots", "units", "messages", "timers", "queues", "cursors")
"""What rules of consistency look at, in the order in which they are shown."""
Severity = Literal["error", "warning"]
NEVER: Final = math.inf
_KEYS: Final = (
    "looks at", "measures", "means", "do", "warn", "fail", "least", "says", "none", "place",
)  # fmt: skip
_NEEDED: Final = ("looks at", "measures", "means", "do", "warn", "says", "none")
_OF_CONSISTENCY: Final = ("of", "looks at", "counts", "says", "means", "severity")


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
    """A rule; docs/validate.md and docs/pipeline.md list all."""

    kind: str
    """consistency, distribution or own."""
    measures: str
    """What its value is, with its unit; of consistency what it counts."""
    means: str
    """What is so if it warns or fails."""
    says: str
    """A sentence, to be filled with a row; of consistency what is so of each place."""
    limits: Limits
    file: str
    """Where it was read, as errors name it."""
    group: str
    """What it looks at, one of `GROUPS`; else its kind."""
    do: str = ""
    """What to do if it warns or fails."""
    none: str = ""
    """The sentence if it returns no row about a store."""
    place: str = ""
    severity: Severity = "error"
    """Of consistency: what a failure is."""


def read_rule(name: str, content: str, file: str, kind: str) -> Rule:
    """Read a rule of distribution, or of the user, out of its file. Raises InvalidArgumentError."""
    head, text = read_head(file, content, _KEYS)
    if not text:
        raise InvalidArgumentError(f"{file} has no query. Write one below its head.")
    for key in _NEEDED:
        if key not in head:
            raise InvalidArgumentError(f"{file} does not say {key!r}. Write -- {key}: …")
    limits = Limits(**{key: _number(head[key], file) for key in Limits._fields if key in head})
    return Rule(
        name,
        _names(head["looks at"]),
        text,
        kind,
        measures=head["measures"],
        means=head["means"],
        says=head["says"],
        limits=limits,
        file=file,
        group=kind,
        do=head["do"],
        none=head["none"],
        place=head.get("place", ""),
    )


def _read_consistency(name: str, content: str) -> Rule:
    file = f"{name}.sql"
    head, text = read_head(file, content, _OF_CONSISTENCY)
    return Rule(
        name,
        tuple(head[key] for key in ("looks at",) if key in head),
        text,
        CONSISTENCY,
        measures=head["counts"],
        means=head["means"],
        says=head["says"],
        limits=Limits(0, 0),
        file=file,
        group=head["of"],
        severity="warning" if "severity" in head else "error",
    )


def read_head(
    file: str, content: str, keys: Collection[str] | None = None
) -> tuple[dict[str, str], str]:
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
        if keys is not None and key not in keys:
            raise InvalidArgumentError(f"{file} says {key!r} in its head. {meant(key, keys)}")
        head[key] = value.strip()
    return head, ""


def _number(text: str, file: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(f"{file} has the limit {text!r}. Use a number.") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(","))


def _read_table(name: str, content: str) -> Query:
    head, text = read_head(f"{name}.sql", content, _KEYS)
    return Query(name, _names(head["looks at"]), text)


def sql_files(folder: Traversable) -> dict[str, str]:
    """Return what the files of SQL in a folder contain, by their names without .sql, in order."""
    found = {each.name: each for each in folder.iterdir() if each.name.endswith(".sql")}
    return {name.removesuffix(".sql"): found[name].read_text("utf-8") for name in sorted(found)}


OURS: Final = files("timerstore.audit")
RESULTS: Final = sql_files(OURS / "results")
"""What declares each result table, and the query that makes it: see `pipeline/resulttables.py`."""
CONSISTENCY_RULES: Final = tuple(
    sorted(
        (_read_consistency(name, text) for name, text in sql_files(OURS / "integrity").items()),
        key=lambda rule: GROUPS.index(rule.group),
    )
)
"""All of consistency, by group and name."""
ABOUT_BYTES: Final = frozenset(rule.name for rule in CONSISTENCY_RULES if not rule.text) | {
    "unit_slot"
}
"""Those of `verify`. The others ask whether what is sound by itself fits together, and what became
of each timer."""
DISTRIBUTION_RULES: Final = tuple(
    read_rule(name, text, f"{name}.sql", DISTRIBUTION)
    for name, text in sql_files(OURS / "rules").items()
)
"""All of distribution, by name."""
RULES: Final = {rule.name: rule for rule in (*CONSISTENCY_RULES, *DISTRIBUTION_RULES)}
"""All rules, by their names."""
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
