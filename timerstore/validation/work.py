"""The work of a validation, in two rounds.

In the first round each range of the store is looked at by itself, in any process. In the second the
facts of all ranges meet: queries say what does not fit (`timerstore/audit/meeting.py`). `plain.py`
does both in one process, `timerstore.spark` on a cluster.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from timerstore.audit.engines import Engine, rows_of
from timerstore.audit.meeting import COUNTS, MEASURES, MEETINGS, checked_queries, places_query
from timerstore.audit.sentences import readable
from timerstore.tables.bounds import java_hash
from timerstore.tables.splits import FILES, LOG, UNITS, WHEEL, Range
from timerstore.validation import facts
from timerstore.validation.entries import look_at_entries
from timerstore.validation.evidence import Evidence, Example
from timerstore.validation.facts import Facts
from timerstore.validation.files import look_at_files
from timerstore.validation.findings import Findings
from timerstore.validation.loggedunits import look_at_units
from timerstore.validation.lost import last_filler
from timerstore.validation.messages import look_at_messages
from timerstore.validation.plan import Scope
from timerstore.validation.usedslots import look_at_slots


def look_at(scope: Scope, ranges: tuple[Range, ...]) -> tuple[Evidence, Facts]:
    """Look at ranges of a store; return what was found, and the facts that are to meet others."""
    findings = Findings(scope)
    for part, start, stop in ranges:
        if part == LOG:
            look_at_messages(findings, start, stop)
        elif part == UNITS:
            look_at_units(findings, start, stop)
        elif part == WHEEL:
            look_at_slots(findings, start, stop)
        elif part == FILES:
            look_at_files(findings)
        else:
            look_at_entries(findings, part, start, stop)
    reader = scope.view.reader
    for segments in (reader.commitlog, reader.timerlog, *reader.queues.values()):
        segments.unmap()
    return findings.tally, findings.facts()


def source_facts(scope: Scope) -> pa.Table:
    """Return the one row of facts that says where the parts of a store end."""
    view, checkpoint = scope.view, scope.view.checkpoint
    is_ours = checkpoint is not None and not checkpoint.by_broker
    numbers = {
        "read_slot": view.read_slot,
        "read_ms": view.read_slot * view.reader.precision_ms,
        "precision_ms": view.reader.precision_ms,
        "units_start": view.reader.timerlog.start,
        "linked_again": scope.linked_again,
        "floor_at": view.floor,
        "log_start": view.reader.commitlog.start,
        # What became of a message before that may have been lost, and covered.
        "salvaged_to": last_filler(view.reader),
        "checkpoint_floor": checkpoint.floor if is_ours and checkpoint else 0,
        "floor_offset": checkpoint.floor_offset if is_ours and checkpoint else 0,
        "scan_from": checkpoint.scan_from if is_ours and checkpoint else 0,
        "is_wheel_torn": scope.is_wheel_torn,
        "is_our_store": is_ours,
        "is_handed_over": bool(is_ours and checkpoint and checkpoint.handed_over),
    }
    columns = {name: np.array([value]) for name, value in numbers.items()}
    return facts.facts_of(facts.SOURCES, columns)


def meet(engine: Engine, scope: Scope, tally: Evidence) -> None:
    """Judge what all facts of a store say together; the engine has them as tables."""
    for name, query in MEETINGS.items():
        if name == "matched" and not tally.counts["nameless_copies"]:
            query = "SELECT * FROM named WHERE FALSE"
        with _timed(tally, name):
            engine.make(name, query)
    places: dict[tuple[str, bool, int], list[Example]] = defaultdict(list)
    with _timed(tally, "rules"):
        queries = [places_query(tally.named_max), *checked_queries(), COUNTS]
        found, *checked, (counts,) = (rows_of(engine.ask(each)) for each in queries)
    for row in found:
        place = Example(row["file"], row["place"], row["reason"])
        places[row["rule"], row["is_torn"], row["places"]].append(place)
    for (rule, is_torn, count), named in places.items():
        tally.fail(rule, count, named, torn=is_torn)
    for (row,) in checked:
        tally.checked.update(row)
    tally.counts.update(counts)
    if scope.measures:
        engine.add("topics", _topics(tally.topics))
        for name, query in MEASURES.items():
            with _timed(tally, name):
                tally.measures[name] = engine.ask(query)


def _topics(names: Mapping[int, str]) -> pa.Table:
    """Return the names of topics as a table, by their numbers and by what units have of them."""
    return pa.table(
        {
            "topic": pa.array(names, pa.int64()),
            "name": pa.array(map(readable, names.values()), pa.string()),
            "topic_hash": pa.array(
                [java_hash(name) & 0xFFFFFFFF for name in names.values()], pa.int64()
            ),
        }
    )


@contextmanager
def _timed(tally: Evidence, name: str) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    tally.spent[name] += time.perf_counter() - began_s
