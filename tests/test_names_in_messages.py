"""A message names a folder, its topic's: whoever wrote one that leads elsewhere leads nowhere."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests import naive
from tests.small_store import SMALL
from timerstore import ManualClock, TimerStore

HOUR = timedelta(hours=1)
NAMES = ["../x", "/x/y", "..", "./xx", "a\0bc"]


def rewrite(path: Path, offset: int, name: str | None) -> None:
    """Give a timer another real topic, or none, with the checksum that fits; of the same length."""
    file = path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    size = int.from_bytes(data[offset : offset + 4])
    message = naive.decode_message(bytes(data[offset : offset + size]), offset)
    properties = dict(message.properties)
    properties.pop("__CRC32#", None)
    old = properties.pop("REAL_TOPIC")
    properties["REAL_TOPIC" if name is not None else "REAL_TOPAZ"] = name or old
    changed = naive.encode_message(replace(message, properties=properties))
    assert len(changed) == size
    data[offset : offset + len(changed)] = changed
    file.write_bytes(data)


@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", [*NAMES, None])
def test_a_timer_that_leads_nowhere_is_named_and_the_others_fire(
    tmp_path: Path, name: str | None, closed: bool
) -> None:
    home = tmp_path / "a" / "b"  # what climbs out of the store is still under tmp_path
    home.mkdir(parents=True)
    path, clock = home / "s", ManualClock()
    store = timerstore.open(path, config=SMALL, clock=clock)
    topic = "x" * len(name or "none")
    for body, where in (b"before", "t"), (b"evil", topic), (b"behind", "t"):
        store.put(body, topic=where, delay=HOUR)
    evil = next(timer for timer in store.pending() if timer.topic == topic)
    offset = int(evil.id[12:24], 16) & ((1 << 47) - 1)
    store.close() if closed else store.abandon()
    rewrite(path, offset, name)
    before = {file for file in tmp_path.rglob("*") if path not in file.parents}
    with TimerStore(path, config=SMALL, clock=ManualClock(clock.now_ms)) as store:
        clock = store.core.clock  # type: ignore[assignment]
        clock.advance(2 * HOUR)
        bodies = {delivery.body for delivery in store.pull("t", group="g", timeout=0)}
        assert bodies == {b"before", b"behind"}
        assert any(place.offset == offset for place in store.core.engine.damage.places)
    new = home / "new"
    report = timerstore.salvage(path, new)
    assert report is not None
    timerstore.open(new).close()
    after = {file for file in tmp_path.rglob("*") if path not in file.parents}
    assert {file for file in after - before if new != file and new not in file.parents} == set()
