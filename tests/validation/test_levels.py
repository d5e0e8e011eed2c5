"""Delay levels whose messages a broker delivered: its copies say neither of what, nor when due."""

from dataclasses import replace
from pathlib import Path

import pytest

import timerstore
from tests.rigs.patient import Patient
from tests.rigs.planted import COUNTS_FILE, LEVELS, LOG, make_store
from timerstore import Config, ManualClock
from timerstore.validation import validate


@pytest.fixture
def store(tmp_path: Path) -> Patient:
    make_store(tmp_path / "store")
    return Patient(tmp_path / "store")


def deliver(store: Patient, late_ms: int) -> int:
    """Deliver what waits in level 4, as a broker does; return where the copy stands."""
    messages = sorted(store.messages.values(), key=lambda message: message.offset)
    source = next(m for m in messages if (m.topic, m.queue_id) == (LEVELS, 3))
    copy = next(m for m in messages if m.topic == "leveled")
    properties = {
        name: text
        for name, text in copy.properties.items()
        if name not in ("TIMER_ORIGIN", "TIMER_OUT_MS")
    }
    for name in ("UNIQ_KEY", "REAL_TOPIC", "REAL_QID"):
        properties[name] = source.properties[name]
    due_ms = int(source.properties["UNIQ_KEY"][:12], 16)
    store.set_level(3, 1)

    def count(content: dict) -> None:
        content["levelCount"]["leveled"]["count"] -= 1

    store.change_json(COUNTS_FILE, count)
    return store.append(
        replace(copy, properties=properties, stored_ms=due_ms + late_ms, body=source.body)
    )


def test_its_copy_is_matched(store: Patient) -> None:
    before = validate(store.path).counts
    deliver(store, 0)
    found = validate(store.path)
    assert found.ok and not found.failures, str(found)
    assert found.counts["fired"] == before["fired"] + 1
    assert (before["in_levels"], found.counts["in_levels"]) == (1, 0)


def test_its_copy_is_early(store: Patient) -> None:
    offset = deliver(store, -1)
    found = validate(store.path)
    assert [each.name for each in found.rules if not each.ok] == ["early"], str(found)
    assert [(each.file, each.offset) for each in found["early"].places] == [(LOG, offset)]


def test_levels_may_have_been_others(tmp_path: Path) -> None:
    """Whoever validates does not know the program's own delay levels, and need not."""
    config = Config(durability="process", delay_levels="1s 2s 7s")
    with timerstore.open(tmp_path / "s", config=config, clock=ManualClock()) as store:
        store.put(b"x", delay_level=3)
    found = validate(tmp_path / "s")
    assert found.ok and found["level_due"].checked == 1, str(found)
