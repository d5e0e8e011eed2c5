"""Runs the parts of a bench, each of which measures some rows; the options of all benches.

./run bench          compare.py, of child.py
./run bench --cold, --copies, --audit   a file of that name
./run bench --peers  peering.py, of peers/
./run bench --suite  suites.py, of suite/
./run stress         stressing.py, of stress/
all of them          harness.py, results.py: kept, shown, put into a page, whose plots are
                     plots.py's; machine.py; ours.py: a store that is measured
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import machine
import results
from results import Row

_T = TypeVar("_T")
_Sizes = TypeVar("_Sizes")


def sized(full: _T, quick: _T) -> _T:
    """Return the default of a size, with what `--quick` takes in its place."""
    return field(default=full, metadata={"quick": quick})


@dataclass
class Ground(Generic[_Sizes]):
    """What a part measures on."""

    folder: Path
    sizes: _Sizes

    @contextmanager
    def path(self) -> Iterator[Path]:
        """Yield an empty folder, which goes."""
        path = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def main(
    verb: str,
    description: str | None,
    sizes: type[_Sizes],
    parts: Mapping[str, Callable[[Ground[_Sizes]], Iterable[Row]]],
    *,
    option: str = "--parts",
    default: Iterable[str] = (),
) -> None:
    """Measure the parts that the arguments choose; show them, keep them, fill a page.

    `sizes`: a dataclass of `sized` fields, which are options too. `verb` also names the page's
    marks. `default`: the parts that are measured if none is named, else all.
    """
    kind = verb.removeprefix("--") or "figures"
    parser = argparse.ArgumentParser(prog=f"./run bench {verb}".strip(), description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    words = ",".join(default or parts)
    parser.add_argument(option, dest="parts", default=words, help=f"of {listed(parts)}")
    quick: dict[str, Any] = {f.name: f.metadata["quick"] for f in fields(sizes)}  # type: ignore[arg-type]
    readers: dict[type, Any] = {int: count_above_zero, float: above_zero}
    for each in fields(sizes):  # type: ignore[arg-type]
        if reader := readers.get(type(each.default)):
            words = f"default: {each.default}; --quick: {quick[each.name]}"
            parser.add_argument(f"--{each.name.replace('_', '-')}", type=reader, help=words)
    add_files(parser)
    given = parser.parse_args()
    asked, found = chosen(parser, given.parts, parts), check_files(parser, given, kind)
    if not (asked or found):
        parser.error(f"{option} names nothing, and there is no file of --json")
    if given.fill and {*asked, *found} != {*parts}:
        parser.error(f"--fill needs all of {listed(parts)}")
    own = {name: value for name in quick if (value := getattr(given, name, None)) is not None}
    size = sizes(**(quick if given.quick else {}) | own)
    print(machine.headline(), flush=True)
    with machine.scratch_folder(given.folder) as folder:
        ground = Ground(folder, size)
        for name in asked:
            load, rows = os.getloadavg()[0], list[Row]()
            for row in parts[name](ground):
                results.tell(row)
                rows.append(row)
            found[name] = results.record(load, rows=[asdict(row) for row in rows])
            if given.json:
                results.keep(given.json, {f"{kind}/{name}": found[name]})
    table = results.table([found[name] for name in parts if name in found])
    print(f"\n{table}", end="")
    if given.fill:
        results.fill(given.fill, kind, table)


# --- options


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def above_zero(text: str) -> float:
    """Read an option's number, which is more than 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def count_above_zero(text: str) -> int:
    """Read an option's whole number, which is more than 0."""
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a folder and files."""
    parser.add_argument("--folder", help="where stores are made (default: the temporary folder)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="add what is measured to a file")
    words = "put the table of all that FILE has between a page's marks"
    parser.add_argument("--fill", metavar="PAGE", type=Path, help=words)


def check_files(
    parser: argparse.ArgumentParser, given: argparse.Namespace, kind: str
) -> results.Records:
    """Return what the file of `--json` has of a kind.

    Ends, before anything is measured, if the folder or a file is not what it must be.
    """
    try:
        if given.folder:
            os.rmdir(tempfile.mkdtemp(prefix="timerstore-bench-", dir=given.folder))
        if given.json and not os.access(given.json.absolute().parent, os.W_OK):
            raise ValueError(f"{given.json} cannot be written")
        if given.fill:
            results.around(given.fill, kind)
        return results.of(results.read(given.json), kind)
    except (OSError, ValueError) as e:
        parser.error(str(e))


def chosen(parser: argparse.ArgumentParser, parts: str, names: Iterable[str]) -> Sequence[str]:
    """Return the parts that were asked for, or end with what there is."""
    asked = [part for part in parts.split(",") if part]
    if unknown := set(asked) - set(names):
        parser.error(f"no such part: {listed(sorted(unknown))}; use {listed(names)}")
    return asked
