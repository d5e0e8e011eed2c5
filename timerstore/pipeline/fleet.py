"""Which stores a run reads: their names, where they lie."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from timerstore.audit.rule import readable
from timerstore.copies.destination import is_copy
from timerstore.errors import InvalidArgumentError, NotAStoreError
from timerstore.pipeline.tablefiles import quote_store
from timerstore.tables.stores import find_stores
from timerstore.values.kinds import check_kind, check_list, check_path

_PATTERN: Final = frozenset("*?[")
_LOGS: Final = ("commitlog", "timerlog")
_NAME_BYTES_MAX: Final = 240
"""As the tables' folders quote it; a file system takes 255 with what stands before."""


class Member(NamedTuple):
    """One store of a run."""

    name: str
    path: str


def find_members(stores: Any) -> list[Member]:
    """Return the stores that are meant, by name; a path that leads to none is one too.

    `stores`: a path, a folder of stores, a pattern; a list of these; a mapping from names to paths;
    rows of (name, path), or a table with these columns, Arrow's, pandas' or Spark's. Else a store's
    name is its folder's, or its whole path if two have that. Raises InvalidArgumentError if
    two have a name, or one is too long for a folder's, NotAStoreError if a pattern matches
    nothing.
    """
    named = _named(stores)
    if named is None:
        paths = [path for each in _as_list(stores) for path in _expanded(each)]
        paths = list(dict.fromkeys(paths))
        counts = Counter(map(_last, paths))
        named = [
            Member(_last(path) if counts[_last(path)] == 1 else readable(path), path)
            for path in paths
        ]
    twice = [name for name, count in Counter(each.name for each in named).items() if count > 1]
    if twice:
        raise InvalidArgumentError(
            f"Two stores are named {twice[0]!r}. Give each store its own name."
        )
    for each in named:
        _check_name(each.name)
    if not named:
        raise InvalidArgumentError("No store was named. Pass a path, a pattern, or a list of them.")
    return named


def _named(stores: Any) -> list[Member] | None:
    """Return the stores of a mapping or of a table of names and paths; None: it is neither."""
    if isinstance(stores, Mapping):
        rows: Iterable[Any] = stores.items()
    elif hasattr(stores, "select") and hasattr(stores, "collect"):  # Spark
        rows = [(row["name"], row["path"]) for row in stores.select("name", "path").collect()]
    elif hasattr(stores, "itertuples"):  # pandas
        rows = zip(stores["name"], stores["path"], strict=True)
    elif hasattr(stores, "column_names"):  # Arrow
        columns = (stores.column(name).to_pylist() for name in ("name", "path"))
        rows = zip(*columns, strict=True)
    elif isinstance(stores, list | tuple) and stores and isinstance(stores[0], list | tuple):
        rows = stores
    else:
        return None
    found = []
    for row in rows:
        if len(row) != 2:
            raise InvalidArgumentError(f"stores contains {row!r}. Pass pairs of a name and a path.")
        name, path = row
        check_kind(name, str, "a store's name")
        found.append(Member(name, os.path.abspath(check_path(path))))
    return found


def _as_list(stores: Any) -> list[Any]:
    if isinstance(stores, str | bytes | os.PathLike):
        return [stores]
    return check_list(stores, "stores", "Pass a path, or a list of them.")


def _expanded(path: Any) -> list[str]:
    """Return the stores that a path means; itself, if it is none and no pattern either."""
    text = os.fspath(check_path(path))
    try:
        found = find_stores(text, refused_too=True).paths
    except NotAStoreError:
        if _PATTERN & set(text):
            raise
        found = (text,)
    return [os.path.abspath(each) for each in found]


def _last(path: str) -> str:
    return readable(Path(path).name or path)


def _check_name(name: str) -> None:
    """Check that a folder of the tables can have the name of a store."""
    if readable(name) != name:
        raise InvalidArgumentError(f"A store's name is {name!r}. Pass a str.")
    if len(os.fsencode(quote_store(name))) > _NAME_BYTES_MAX:
        raise InvalidArgumentError(
            f"{name!r} is too long for the name of a store. Pass a shorter one with its path."
        )


def size_of(path: str) -> int:
    """Return how many bytes of disk the logs of a store take; 0 of a copy, or if nobody knows."""
    total = 0
    if is_copy(path):
        return total  # one task reads it
    for folder in _LOGS:
        try:
            with os.scandir(Path(path) / folder) as files:
                total += sum(each.stat(follow_symlinks=False).st_blocks * 512 for each in files)
        except OSError:
            continue
    return total
