"""Rules about slots: do they hold what due times predict, what does firing them cost?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from timerstore.ground.amounts import shown_bytes
from timerstore.pipeline.finding import DistributionRule, Finding, judged
from timerstore.pipeline.storetables import StoreTables
from timerstore.pipeline.thresholds import Thresholds
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.jit.record import Words
from timerstore.validation.evidence import Example
from timerstore.validation.usedslots import WHEEL
from timerstore.validation.words import counted, share, slot_time

ARCS: Final = 64
"""Pieces of the ring in which actual and expected units are compared."""
_TOLD: Final = 5
_MIB: Final = 1 << 20

SLOTS_MAPPED: Final = DistributionRule(
    "slots_mapped",
    "the share of units that are in another slot than the due times of their messages say",
    "Those timers fire late or early. Compare precision_ms, roll_window_slots and "
    "wheel_slot_count in timerstore.json with the settings of the program that wrote the store, "
    "and run timerstore validate.",
)
SLOTS_RING: Final = DistributionRule(
    "slots_ring",
    f"chi-square of the ring's {ARCS} arcs against what due times predict, by degree of freedom",
    "The wheel holds units in wrong slots. Run timerstore validate, which names the slots; then "
    "restore a backup, or make a new store from this one with timerstore salvage.",
)
CHAINS_DEPTH: Final = DistributionRule(
    "chains_depth",
    "units in the longest chain",
    "All units of a chain are read before its slot fires. Spread the due times, or make a new "
    "store with a smaller precision_ms.",
)
CHAINS_SCATTER: Final = DistributionRule(
    "chains_scatter",
    "MiB of the commit log's pages that firing one slot reads, at most",
    "The messages of one slot lie far apart, because they were put at different times. Use a "
    "machine whose memory holds the log, use a faster disk, or put timers of one instant "
    "together.",
)
CHAINS_DEAD: Final = DistributionRule(
    "chains_dead",
    "the share of units that fire nothing: deletes, cancelled timers, units that cleaning moved",
    "Most units of the wheel fire nothing. A unit is dropped when its slot has passed: put "
    "timers that are often cancelled later, or with a shorter delay.",
)
ROLLS_COST: Final = DistributionRule(
    "rolls_cost",
    "the bytes that rolls will still write, for each pending byte",
    "Many timers are due far beyond the roll window, so they hop many times. Make a new store "
    "with a larger roll_window_slots, or keep timers that are due in years elsewhere.",
)


def slot_findings(seen: StoreTables, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what the rules about slots, chains and rolls find."""
    yield _mapped(seen, thresholds)
    yield _ring(seen, thresholds)
    yield from _chains(seen, thresholds)
    yield _rolls(seen, thresholds)


def _column(seen: StoreTables, name: str) -> Words:
    return seen.column("slot_load", name)


def _places(seen: StoreTables, rows: Words, words: str) -> list[Example]:
    """Name slots by what some of their columns say."""
    precision_ms = seen.store["precision_ms"]
    return [
        Example(
            WHEEL,
            (row["index"] or 0) * fmt.SLOT_BYTES,
            f"{slot_time(row['time_ms'], precision_ms)}: {words.format(**row)}",
        )
        for row in seen.tables["slot_load"].take(rows).to_pylist()
    ]


# --- where units stand


def _mapped(seen: StoreTables, thresholds: Thresholds) -> Finding:
    """Compare each slot with what due times predict; what came too late for its slot is excused."""
    live, late, expected = (_column(seen, name) for name in ("live", "late", "expected"))
    more = live - late - expected
    misplaced = int(max(more[more > 0].sum(), -more[more < 0].sum()))
    total = max(int(live.sum()), int(expected.sum()))
    wrong = np.flatnonzero(more)
    worst = wrong[np.argsort(-np.abs(more[wrong]), kind="stable")][:_TOLD]
    says = f"All of {counted(total, 'unit')} are in the slots that their due times say."
    if misplaced:
        says = (
            f"{counted(misplaced, 'unit')} of {total:,} are in other slots than their due times "
            "say."
        )
    return judged(
        SLOTS_MAPPED,
        thresholds.limits[SLOTS_MAPPED.name],
        misplaced / max(1, total),
        says,
        checked=total,
        places=_places(seen, worst, "{live:,} units, {expected:,} expected"),
    )


def _ring(seen: StoreTables, thresholds: Thresholds) -> Finding:
    """Compare arcs of the ring, by the indexes where the wheel has the slots."""
    ring = max(1, seen.store["ring_slots"])
    index, slot = _column(seen, "index"), _column(seen, "slot")
    reached = np.minimum(_column(seen, "live"), _column(seen, "depth")) - _column(seen, "late")
    known = index >= 0
    arc = np.minimum(index[known] * ARCS // ring, ARCS - 1)
    actual = np.bincount(arc, np.maximum(reached[known], 0), ARCS)
    own = slot % ring * ARCS // ring
    expected = np.bincount(own, _column(seen, "expected"), ARCS)
    value = float(((actual - expected) ** 2 / np.maximum(expected, 1)).sum() / (ARCS - 1))
    worst = np.argsort(-np.abs(actual - expected), kind="stable")[:_TOLD]
    places = [
        Example(
            WHEEL,
            each * ring // ARCS * fmt.SLOT_BYTES,
            f"from index {each * ring // ARCS:,}: {actual[each]:,.0f} units, "
            f"{expected[each]:,.0f} expected",
        )
        for each in worst.tolist()
        if actual[each] != expected[each]
    ]
    says = f"Over {ARCS} arcs of the ring chi-square is {value:,.2f} by degree of freedom."
    limits = thresholds.limits[SLOTS_RING.name]
    return judged(SLOTS_RING, limits, value, says, checked=int(expected.sum()), places=places)


# --- what firing costs


def _chains(seen: StoreTables, thresholds: Thresholds) -> Iterator[Finding]:
    depth, read_bytes = _column(seen, "depth"), _column(seen, "read_bytes")
    units, count = _column(seen, "units"), len(depth)
    deepest = np.argsort(-depth, kind="stable")[:1]
    deep = int(depth.max(initial=0))
    says = f"The longest chain has {counted(deep, 'unit')}."
    places = _places(seen, deepest, "{depth:,} units in its chain")
    limits = thresholds.limits
    yield judged(CHAINS_DEPTH, limits[CHAINS_DEPTH.name], deep, says, checked=count, places=places)

    most = np.argsort(-read_bytes, kind="stable")[:1]
    read, needed = int(read_bytes.max(initial=0)), int(_column(seen, "bytes")[most].sum())
    says = f"Firing the most scattered slot reads {shown_bytes(read)}"
    says += f" for {shown_bytes(needed)} of messages." if needed else "."
    places = _places(seen, most, "{live:,} messages, {read_bytes:,} bytes of pages")
    yield judged(
        CHAINS_SCATTER, limits[CHAINS_SCATTER.name], read / _MIB, says, checked=count, places=places
    )

    deletes, superseded = (
        int(_column(seen, "deletes").sum()),
        int(_column(seen, "superseded").sum()),
    )
    total = int(units.sum())
    dead = min(total, 2 * deletes + superseded)
    says = f"{share(dead, total)} of {counted(total, 'unit')} fire nothing: "
    says += f"{counted(deletes, 'delete')} with what they cancel, {superseded:,} superseded."
    yield judged(CHAINS_DEAD, limits[CHAINS_DEAD.name], dead / max(1, total), says, checked=total)


def _rolls(seen: StoreTables, thresholds: Thresholds) -> Finding:
    store = seen.store
    waits = max(1, int(_column(seen, "bytes").sum()))
    says = "No timer lies beyond the roll window."
    if store["rolling"]:
        says = f"{counted(store['rolling'], 'timer')} wait for {counted(store['hops'], 'roll')}, "
        says += f"which will write {shown_bytes(store['hop_bytes'])}."
    limits = thresholds.limits[ROLLS_COST.name]
    return judged(ROLLS_COST, limits, store["hop_bytes"] / waits, says, checked=store["rolling"])
