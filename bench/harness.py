"""Runs the parts of a bench, each of which measures some rows; the options of all benches.

./run bench          compare.py, of rates.py, lateness.py, space.py, child.py; sizes.py
./run bench --calls, --threads, --aio, --serving, --cluster, --copies, --cold, --spark,
--hundred-million    a file of that name
./run bench --peers  peering.py, of peers/; rates.py and calls.py use SQLite and LMDB of it
./run bench --suite  suites.py, of suite/
./run stress         stressing.py, of stress/
all of them          harness.py, results.py: kept, shown, put into a page, whose plots are
                     plots.py's; machine.py; ours.py, bare.py: what a store, a disk does
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
_Way = TypeVar("_Way")
_Sizes = TypeVar("_Sizes")


def sized(full: _T, quick: _T) -> _T:
    """Return the default of a size, with what `--quick` takes in its place."""
    return field(default=full, metadata={"quick": quick})


@dataclass
class Ground(Generic[_Sizes]):
    """What a part measures on."""

    folder: Path
    sizes: _Sizes
    warm_bytes: int

    def warm(self) -> None:
        """Make memory warm; see `machine.warm_memory`."""
        machine.warm_memory(self.warm_bytes)

    def warmed(self, play: Callable[[], _T]) -> Callable[[], _T]:
        """Return what makes memory warm, then plays."""

        def warm() -> _T:
            self.warm()
            return play()

        return warm

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
    readers: dict[type, Any] = {int: count_above_zero, float: above_zero, str: str}
    for each in fields(sizes):  # type: ignore[arg-type]
        if reader := readers.get(type(each.default)):
            words = f"default: {each.default}; --quick: {quick[each.name]}"
            parser.add_argument(f"--{each.name.replace('_', '-')}", type=reader, help=words)
    words = "GiB of memory that each round touches first (default: 3)"
    parser.add_argument("--warm-gib", type=float, default=3.0, help=words)
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
        ground = Ground(folder, size, int(given.warm_gib * (1 << 30)))
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


def in_turns(ways: Mapping[_Way, Callable[[], _T]], rounds: int) -> dict[_Way, list[_T]]:
    """Play each way once a round; return what it gave, but for the first round, which warms."""
    found: dict[_Way, list[_T]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            found[name].append(way())
    return {name: each[1:] for name, each in found.items()}


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
