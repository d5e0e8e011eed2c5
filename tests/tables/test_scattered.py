"""Messages that are read together may lie in any segments: all of them stay mapped."""

from pathlib import Path

import numpy as np

import timerstore
from tests.pipeline.planted_stores import CONFIG
from timerstore.tables.timers import Places, read_messages
from timerstore.validation.plan import make_plan

COUNT, SEGMENTS = 48, 8


def test_what_was_read_stays_mapped(tmp_path: Path) -> None:
    """Beside the segments of a chunk as few as may be are mapped, in any order."""
    with timerstore.open(tmp_path, config=CONFIG) as store:
        store.put_many([bytes(180_000)] * COUNT, delay_ms=[3_600_000] * COUNT)
    found = timerstore.read(tmp_path, "messages", ["offset"]).column("offset").to_numpy()
    view = make_plan(tmp_path).scope.view
    log = view.reader.commitlog
    assert len(found) == COUNT and len(np.unique(found // log.segment_bytes)) >= SEGMENTS
    for seed in range(30):
        log.unmap()
        log.open_count_max = 2
        rng = np.random.default_rng(seed)
        places = Places.without_unit(rng.permutation(found))
        for step in read_messages(view, places, chunk=int(rng.integers(1, 9))):
            needed = np.unique(step.places.message // log.segment_bytes)
            assert set(needed.tolist()) <= set(log.table.number.tolist()), seed
