"""Checks of what `put_many` takes."""

from __future__ import annotations

import numpy as np

from timerstore.errors import InvalidArgumentError
from timerstore.ground.arguments import Binaries, check_description, encode_properties, too_long
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.bytes.text import first_bad_key
from timerstore.timelog.writing.frame import encode_property


def check_keys(keys: Binaries, count: int) -> None:
    """Refuse keys that cannot stand in a property."""
    if len(keys) != count:
        raise InvalidArgumentError(
            f"keys has {len(keys)} texts and bodies has {count}. Pass a key for each body."
        )
    bad = first_bad_key(keys.pieces)
    if bad >= 0:
        raise InvalidArgumentError(
            f"keys[{bad}] is empty, or holds U+0001 or U+0002. Pass another text."
        )


def check_lengths(
    bodies: Binaries,
    keys: Binaries | None,
    tag: str | None,
    bytes_max: int,
    carried_bytes: int = 0,
) -> None:
    """Refuse bodies or keys that are empty or too long.

    `bytes_max`: what a body, its key, the tag, and the `carried_bytes` of what all have, may take
    together.
    """
    if int(bodies.length.min()) == 0:
        i = int(np.argmin(bodies.length))
        raise InvalidArgumentError(
            f"bodies[{i}] is empty, and RocketMQ brokers drop empty messages. Pass at least one "
            "byte."
        )
    tag_bytes = len(encode_properties(None, tag, None)) + carried_bytes
    if keys is None and int(bodies.length.max()) + tag_bytes <= bytes_max:
        check_description(tag_bytes)
        return
    described = np.full(len(bodies), tag_bytes, np.int64)
    if keys is not None:
        described += len(encode_property(fmt.PROPERTY_KEYS, b"")) + keys.length
    check_description(int(described.max()))
    i = int(np.argmax(bodies.length + described))
    if bodies.length[i] + described[i] > bytes_max:
        raise too_long(f"bodies[{i}]", int(bodies.length[i]), int(described[i]), bytes_max)
