"""The names that files of a store can have.

Every name that was read, from a folder or out of a file, is asked here before it becomes part of a
path: a person who can write a backup, or a message, must not be able to say which file of the
system is touched.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from timerstore.timelog.bytes import format as fmt

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
NAME_BYTES_MAX: Final = 255
"""What Linux takes for a file's name."""
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SEGMENT: Final = re.compile(rf"[0-9]{{{fmt.SEGMENT_NAME_DIGITS}}}")
_AT_THE_TOP: Final = frozenset(("timerstore.json", "checkpoint", "abort"))
VOLUME_FOLDER: Final = "lost+found"
"""Belongs to the file system, at the root of a volume; it is nobody's, and cannot be read."""

BUILDING_FOLDER: Final = ".building"
"""In a volume's root: a store that is being made there."""


def held_names(folder: Path) -> set[str]:
    """Return the names that a folder holds: it is empty if there are none.

    The folder that a file system makes at a volume's root does not count.
    """
    return set(os.listdir(folder)) - {VOLUME_FOLDER}


def segment_name(offset: int) -> str:
    """Return the file name of the segment that starts at `offset`."""
    return f"{offset:0{fmt.SEGMENT_NAME_DIGITS}d}"


def segment_offset(name: str) -> int | None:
    """Return where the segment of that file name starts; None if it is no segment's.

    >>> segment_offset("00000000000000004096")
    4096
    """
    if not _SEGMENT.fullmatch(name) or int(name) > INT64_MAX:
        return None
    return int(name)


def number_of(name: str) -> int | None:
    """Return the number that names a folder, of a queue or a point; None if none does.

    >>> number_of("17"), number_of("017"), number_of("²"), number_of("-1")
    (17, None, None, None)
    """
    if not _NUMBER.fullmatch(name) or int(name) > INT32_MAX:
        return None
    return int(name)


def is_plain(name: bytes) -> bool:
    """Tell whether a name is that of a file in its folder, and leads nowhere else.

    >>> is_plain(b"orders"), is_plain(b"../orders"), is_plain(b".."), is_plain(b"")
    (True, False, False, False)
    """
    if not 0 < len(name) <= NAME_BYTES_MAX or name in (b".", b".."):
        return False
    return b"/" not in name and b"\0" not in name


def is_topic(name: bytes) -> bool:
    """Tell whether a store can have a topic of that name, ours or a broker's."""
    return is_plain(name) and len(name) <= fmt.TOPIC_BYTES_READ_MAX


def is_small_file(name: str) -> bool:
    """Tell whether it is the path, inside the store, of a file that is read whole.

    >>> [is_small_file(name) for name in ("abort", "config/topics.json", "config/../../x", "/x")]
    [True, True, False, False]
    """
    folder, slash, file = name.partition("/")
    if not slash:
        return name in _AT_THE_TOP
    return folder == "config" and is_plain(file.encode("utf-8", "surrogatepass"))
