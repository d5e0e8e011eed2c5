"""Which stores a path names: one, those that a pattern matches, or those in a folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from timerstore.core.directory import holds_objects
from timerstore.errors import NotAStoreError
from timerstore.timelog.files.names import VOLUME_FOLDER, held_names
from timerstore.timelog.files.oserrors import told_of
from timerstore.values.kinds import check_list, check_path, is_url

_PATTERN: Final = frozenset("*?[")
_DEPTH_MAX: Final = 2
"""A folder of stores, or a folder of loads of stores as the Spark writer leaves it."""


class Stores(NamedTuple):
    """The stores that were found. `several`: a row must say which store it is of."""

    paths: tuple[str, ...]
    several: bool


def is_store(path: Path) -> bool:
    """Tell whether a folder is a store, ours or a broker's."""
    return (path / "commitlog").is_dir() or (path / "timerstore.json").is_file()


def find_stores(
    paths: str | os.PathLike[str] | Iterable[str], *, refused_too: bool = False
) -> Stores:
    """Find the stores that are meant.

    A path is a store, a folder that holds stores (folders whose names begin with `.` or `_` do not
    count), or a pattern with `*`, `?` or `[…]`. `file:` in front of a path is passed over. A backup
    and a standby count as stores; a backup may be an address.
    `refused_too`: a folder that may not be looked into counts as a store, so that opening it raises
    the error; else it is an error at once. Raises NotAStoreError, StoreAccessError.
    """
    with told_of(paths):
        return _find_stores(paths, refused_too)


def _find_stores(paths: str | os.PathLike[str] | Iterable[str], refused_too: bool) -> Stores:
    several = not isinstance(paths, str | os.PathLike)
    found, wanted = list[str](), "Pass a str, a Path, or a list of them."
    for path in check_list(paths, "path", wanted) if several else [paths]:
        if is_url(path) and not path.startswith("file:"):
            found.append(path)
            continue
        path = str(check_path(path))
        path = path.removeprefix("file://") if path.startswith("file:///") else path
        path = path.removeprefix("file:")
        if _counts(Path(path), refused_too):
            found.append(path)
            continue
        several = True
        matches = sorted(glob.glob(path)) if _PATTERN & set(path) else [path]
        within = [
            store for match in matches for store in _below(Path(match), _DEPTH_MAX, refused_too)
        ]
        if not within:
            there = (
                "holds no commit log" if matches and Path(matches[0]).exists() else "is not there"
            )
            raise NotAStoreError(f"{path} {there}. Pass the folder of a store, or of a backup.")
        found += within
    # One store may have several names.
    places = dict[str, str]()
    for each in found:
        places.setdefault(_real(each), each)
    return Stores(tuple(places.values()), several)


def _real(path: str) -> str:
    """Return the one name of a folder; an address, or what cannot be looked at, as it is."""
    try:
        return os.path.realpath(path, strict=True)
    except OSError:
        return path


def _counts(path: Path, refused_too: bool) -> bool:
    try:
        return is_store(path) or holds_objects(path)
    except OSError:
        if refused_too:
            return True
        raise


def _below(path: Path, depth: int, refused_too: bool) -> list[str]:
    """Return the path, if it counts as a store, else the stores below it."""
    if path.name == VOLUME_FOLDER:
        return []
    if _counts(path, refused_too):
        return [str(path)]
    if depth == 0 or not path.is_dir():
        return []
    try:
        folders = [path / each for each in sorted(held_names(path)) if each[0] not in "._"]
    except OSError:
        if refused_too:
            return [str(path)]
        raise
    return [store for each in folders for store in _below(each, depth - 1, refused_too)]
