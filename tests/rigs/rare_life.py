"""What few programs do, one after the other: openings after crashes, damage, looking from outside.

Run as a program with a folder; prints each kernel of ours that was compiled, which was not said
ahead, or which nobody called. The kernels were compiled before, so it prints nothing but "done".
"""

import logging
import os
import shutil
import sys
import tarfile
from datetime import timedelta
from pathlib import Path

import timerstore
from tests.rigs.called_kernels import called, compiled
from tests.rigs.patient import Folder, Patient
from tests.small_store import SMALL
from tests.sparse_copy import AS_DATA
from timerstore import Config, ManualClock, Tuning
from timerstore.jit.kernel import LOADED_LATER
from timerstore.tables.view import forget
from timerstore.timelog.bytes import format as fmt
from timerstore.validation import validate
from timerstore.validation.plan import make_plan
from timerstore.validation.rounds import run
from timerstore.values.ids import parse_id

GOLDEN = Path(__file__).parents[1] / "golden"
SECOND = timedelta(seconds=1)
GROUP = "g"
NOT_HERE = {
    "timerstore.services.broker.for_broker._link_all",
    "timerstore.timelog.reading.audit.identify_copies",
    "timerstore.timelog.timerlog._append",
    "timerstore.wheel.timerwheel._link",
    "timerstore.wheel.timerwheel.set_slot",
}
"""For a fired copy that has lost where it was put: `tests/timelog/test_audit.py` has one. For the
index of a handover: `tests/store/test_handover.py`. For the timer log and the wheel by
themselves: the examples at the heads of their files.
"""
_IN_BODY = 90
"""A byte of a body, from its message on."""


def unclean(path: Path, clock: ManualClock) -> None:
    """Put timers that fire, move, roll, fail or wait in a level; a kill ends it."""
    store = timerstore.open(path, config=SMALL, clock=clock)
    ids = store.put_many(
        [b"body %02d" % i for i in range(64)], delay_ms=[i * 900 for i in range(64)]
    )
    store.put(b"far", delay=timedelta(days=1), key="k", tag="t", properties={"p": "v"})
    store.put(b"level", topic="leveled", delay_level=1)
    store.put(b"later", topic="leveled", delay_level=3)
    store.cancel_many(ids[40:42])
    store.reschedule(ids[46], delay=30 * SECOND)
    clock.advance(5 * SECOND)
    for delivery in store.pull("default", group=GROUP, timeout=0):
        if delivery.attempt == 0 and len(delivery.body) % 2:
            delivery.nack(delay=8 * SECOND)
        else:
            delivery.ack()
    store.flush()
    store.put(b"behind the checkpoint", delay=2 * SECOND)
    store.cancel(ids[50])
    clock.advance(2 * SECOND)
    store.abandon()


def outlive(path: Path, clock: ManualClock) -> None:
    """Open it again, then without each of the files that can be made anew."""
    timerstore.open(path, config=SMALL, clock=clock).close()
    for gone in ("timerwheel", "timerlog", "consumequeue", "index", "checkpoint"):
        with timerstore.open(path, config=SMALL, clock=clock) as store:
            store.put(b"x", delay=20 * SECOND)
            store.abandon()
        place = path / gone
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        with timerstore.open(path, config=SMALL, clock=clock) as store:
            assert list(store.pending())


def mend(path: Path, clock: ManualClock) -> None:
    """Damage units, a message, a page of the wheel, and have a pass over all of it meet that."""
    with timerstore.open(path, config=SMALL, clock=clock) as store:
        store.put_many([bytes(500)] * 400, topic="long", delay_ms=[500] * 400)
        store.put_many([b"y"] * 20, delay_ms=[20_000 + i % 2 * 1_000 for i in range(20)])
        store.put_many([b"hops"] * 20, delay_ms=[40_000 + i % 2 * 1_000 for i in range(20)])
        clock.advance(SECOND)
    patient = Patient(path)
    linked = sorted(patient.units)
    hops = [each for each in linked if patient.units[each]["magic"] & fmt.UNIT_HOP]
    linked = [each for each in linked if each not in hops]
    damaged = [linked[-12], *linked[-6:-3], *linked[-2:], *hops[3:5]]
    with timerstore.open(path, config=SMALL, clock=clock) as store:
        engine = store.core.engine
        for offset in damaged:
            number, position = divmod(offset, engine.timerlog.segment_bytes)
            engine.timerlog.ensure(number).view[position + 30] ^= 0xFF
        clock.advance(30 * SECOND)
        (id,) = store.put_many([b"lost"], delay_ms=[50_000])
        message = parse_id(id).offset
        number, position = divmod(message, engine.commitlog.segment_bytes)
        engine.commitlog.ensure(number).view[position + _IN_BODY] ^= 0xFF
        clock.advance(60 * SECOND)


def look(path: Path, folder: Path) -> None:
    """Read its tables, verify, validate, measure, back it up, restore, export, salvage it."""
    for table in timerstore.tables.TABLES:
        timerstore.read(path, table)
    timerstore.read(path, "messages", where="topic = 'default'")
    with timerstore.open(path, read_only=True) as store:
        list(store.pending())
        store.horizon(bucket_ms=1_000)
    timerstore.verify(path)
    validate(path)
    plan = make_plan(path, measures=True)  # as a pipeline does, which needs an extra
    run(plan, lambda _: None)
    forget(plan.scope.cut)
    for dest in (folder / "backup", (folder / "objects").as_uri()):
        timerstore.backup(path, dest)
        timerstore.restore(dest, folder / f"restored-{str(dest)[-6:]}")
    log = Folder(path / "commitlog")
    for file in log.files[:2]:  # damage within a segment, and at the end of one
        with open(file, "r+b") as segment:
            segment.seek(-2_000, os.SEEK_END)
            segment.write(bytes(2_000))
    timerstore.verify(path)
    timerstore.salvage(path, folder / "salvaged")


def take_over(folder: Path) -> None:
    """Look at stores of a broker, and go on with one."""
    for name in ("fired", "crashed"):
        with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
            archive.extractall(folder, **AS_DATA)
        validate(folder / name)
        timerstore.open(
            folder / name, config=Config(tuning=Tuning(roll_window_slots=172_800))
        ).close()
        validate(folder / name)


def main(folder: Path) -> None:
    """Do all of it."""
    logging.getLogger("timerstore").setLevel(logging.CRITICAL)
    clock = ManualClock(1_800_000_000_000)
    path = folder / "store"
    unclean(path, clock)
    outlive(path, clock)
    mend(path, clock)
    look(path, folder)
    take_over(folder)
    for name in compiled():
        print("compiled", name)
    seen = called()
    for each in LOADED_LATER:
        if each.name not in seen and each.name not in NOT_HERE:
            print("not called", each.name)
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
