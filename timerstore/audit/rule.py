"""Rules: queries whose heads say what they mean; findings, what a rule says of one store.

First the heads of rules of distribution, and of the user:

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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


OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
VERDICTS: Final = (OK, WARN, FAIL)
_SEVERITIES: Final[dict[str, Severity]] = {WARN: "warning", FAIL: "error"}
_DIGITS: Final = 9
"""Of a value that are kept: the last ones depend on the order in which an engine adds."""


class Example(NamedTuple):
    """One place where a rule fails; `offset` counts bytes over all segments of `file`."""

    file: str
    offset: int
    reason: str


@dataclass(frozen=True)
class Finding:
    """What one rule says of one store: a verdict, a sentence with numbers, places."""

    rule: Rule
    """With the limits that it was asked with."""
    verdict: str
    """ok, warn or fail."""
    says: str
    value: float = 0.0
    """What was measured; of consistency how many places failed."""
    checked: int = 0
    failed: int = 0
    """Places at which it fails; if it fails nowhere, at which it warns."""
    mended: int = 0
    """Other places, which a crash left: the next opening mends them."""
    places: tuple[Example, ...] = ()
    """The first places at which it fails or warns."""

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    @property
    def severity(self) -> Severity:
        """What a failure means: "error", or "warning" for what opening corrects."""
        return _SEVERITIES.get(self.verdict, self.rule.severity)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict == OK

    @property
    def advice(self) -> str:
        """What is so, and what to do, if the verdict is not ok."""
        return "" if self.ok else f"{self.rule.means} {self.rule.do}".strip()

    def to_dict(self) -> dict[str, Any]:
        """Return all values, for JSON; the table `findings` has most of them."""
        limits = self.rule.limits if self.rule.kind != CONSISTENCY else None
        return {
            "rule": self.name,
            "kind": self.rule.kind,
            "group": self.rule.group,
            "severity": self.severity,
            "verdict": self.verdict,
            "value": self.value,
            "warn": limits and limits.warn,
            "fail": limits and limits.fail_or_none,
            "checked": self.checked,
            "failed": self.failed,
            "mended": self.mended,
            "says": self.says,
            "advice": self.advice,
            "places": [each._asdict() for each in self.places],
        }


def of_places(
    rule: Rule, checked: int, failed: int, mended: int, places: Iterable[Example]
) -> Finding:
    """Return what a rule of consistency says, which fails at some places."""
    verdict = OK if not failed else WARN if rule.severity == "warning" else FAIL
    says = f"{rule.measures}: {rule.says}"
    if failed:
        says += f" This fails at {failed:,} of {counted(checked, 'place')}."
    return Finding(rule, verdict, says, float(failed), checked, failed, mended, tuple(places))


def of_rows(rule: Rule, limits: Limits, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Return what another rule says, which returned these rows; without one nothing is judged."""
    rule = replace(rule, limits=limits)
    if not rows:
        return Finding(rule, OK, filled(rule.none, limits._asdict()))
    first = rows[0]
    value = float(f"{first['value']:.{_DIGITS}g}")
    places = tuple(
        Example(row["file"], int(row["offset"]), filled(rule.place, row))
        for row in rows
        if row["value"] > limits.warn and row.get("file") is not None
    )
    return Finding(
        rule,
        verdict_of(value, limits),
        filled(rule.says, limits._asdict() | dict(first)),
        value,
        int(first["checked"]),
        int(first["rows_failed"] or first["rows_warned"]),
        places=places,
    )


def verdict_of(value: float, limits: Limits) -> str:
    """Return what a value means.

    >>> verdict_of(3, Limits(warn=1, fail=2)), verdict_of(1, Limits(warn=1))
    ('fail', 'ok')
    """
    return FAIL if value > limits.fail else WARN if value > limits.warn else OK


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return those that are not ok: what fails, then what warns."""
    bad = [each for each in findings if not each.ok]
    return sorted(bad, key=lambda each: each.verdict)


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of some verdicts; ok if there is none.

    >>> worst(["ok", "warn", "ok"])
    'warn'
    """
    return VERDICTS[max(map(VERDICTS.index, verdicts), default=0)]
