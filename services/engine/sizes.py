"""Which sizes a store is opened with, under which tag: recorded, or found again.

A store of ours has them in `timerstore.json`, with a copy in `config/timercheck`. A broker's store
has neither: its sizes are read off its files, and it gets a tag of ours. A store whose files bear a
tag of ours is no broker's, even if it has lost other files: opened as one, its cancelled timers
would fire.
"""

from __future__ import annotations

import json
import logging
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from timerstore.errors import CorruptStoreError, InvalidArgumentError, NotAStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import (
    IDENTITY_FILE,
    SIZES,
    Identity,
    decode_checkpoint,
    find_identity,
    write_identity,
)
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.reading.reader import StoreReader
from timerstore.timelog.reading.scan import LoggedMessages
from timerstore.values.config import Config

log = logging.getLogger("timerstore")


class Made(NamedTuple):
    """What a store is opened with."""

    config: Config
    identity: Identity
    is_new: bool
    restored: bool  # `timerstore.json` was written again


def find_sizes(path: Path, config: Config, disk: Disk) -> Made:
    """Return the configuration with the sizes that the store was made with; record new ones."""
    identity, fault = find_identity(path, disk.at)
    if identity is not None:
        if fault is not None:
            log.warning("%s: %s; it was written again from config/timercheck", path, fault.reason)
            write_identity(disk, path, identity)
        return Made(_with(config, identity), identity, False, fault is not None)
    sizes = {name: int(getattr(config, name)) for name in SIZES}
    is_new = not disk.exists(path / "commitlog")
    if is_new and any(disk.exists(path / name) for name in ("consumequeue", "timerlog")):
        raise NotAStoreError(
            f"{path} has queues or timers, and no commitlog/. If a broker keeps that elsewhere "
            "(storePathCommitLog), stop the broker, and move that folder to "
            f"{path / 'commitlog'}."
        )
    tag = random.SystemRandom().getrandbits(32)
    if not is_new:
        levels = np.array(config.delay_levels_ms(), np.int64)
        reader = StoreReader(path, levels, folder=disk.folder)
        ours = _find_tag(reader)
        sizes |= _measure(reader)
        if ours is not None:
            raise _lost(path, Identity(store_tag=ours, **sizes), fault)
    elif fault is not None:
        raise fault
    identity = Identity(store_tag=tag, **sizes)
    made = _with(config, identity)  # before anything is written: it checks the sizes
    write_identity(disk, path, identity)
    return Made(made, identity, is_new, False)


def _with(config: Config, identity: Identity) -> Config:
    made = replace(config, **identity.sizes())  # type: ignore[arg-type]
    made.check_max_bytes()
    return made


def _lost(path: Path, identity: Identity, fault: CorruptStoreError | None) -> NotAStoreError:
    """Return the error for a store of ours of which nobody knows the sizes."""
    why = "is lost" if fault is None else f"is damaged ({fault.reason})"
    return NotAStoreError(
        f"{path / IDENTITY_FILE} {why}, and config/timercheck has no copy, yet this is no "
        "broker's store. It was made with the precision_ms and roll_window_slots of some Config: "
        "write the file again with those. With the Config that was passed and the sizes of the "
        f"files it would be {json.dumps(asdict(identity))}."
    )


def _measure(reader: StoreReader) -> dict[str, int]:
    """Read sizes off a store's files; what they do not say is left out."""
    logs = [reader.commitlog, reader.timerlog, *reader.queues.values()]
    if not any(each.numbers for each in logs) and not len(reader.slots):
        raise InvalidArgumentError(
            f"{reader.path} holds no segment of a commit log. Pass the folder of a store."
        )
    found = {}
    if reader.commitlog.numbers:
        found["commitlog_segment_bytes"] = reader.sizes.commitlog_segment_bytes
    if reader.timerlog.numbers:
        found["timerlog_segment_bytes"] = reader.sizes.timerlog_segment_bytes
    if any(queue.numbers for queue in reader.queues.values()):
        found["consumequeue_segment_bytes"] = reader.sizes.consumequeue_segment_bytes
    if len(reader.slots):
        found["wheel_slot_count"] = reader.sizes.wheel_slot_count
    precision_ms = reader.measure_precision()
    if precision_ms is not None:
        found["precision_ms"] = precision_ms
    return found


def _find_tag(reader: StoreReader) -> int | None:
    """Return the tag of a store of ours: the checkpoint's, or that of a message that we put."""
    checkpoint = decode_checkpoint(reader.checkpoint_data)
    if checkpoint is not None and (not checkpoint.by_broker or checkpoint.sequence):
        return checkpoint.store_tag
    for rows in reader.scan(verify=False):
        for row in rows[rows.key_bytes == fmt.KEY_DIGITS]:
            tag = tag_of_key(reader, row)
            if tag is not None:
                return tag
    return None


def tag_of_key(reader: StoreReader, row: LoggedMessages) -> int | None:
    """Return the tag of a message's key of KEY_DIGITS if we gave it: it says an offset."""
    key = reader.commitlog.read(int(row.key_at), fmt.KEY_DIGITS)
    try:
        offset, tag = int(key[12:24], 16), int(key[24:], 16)
    except ValueError:
        return None
    return tag if offset & ~fmt.LEVEL_MARK == row.offset else None
