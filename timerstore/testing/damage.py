"""Damage to files, as a disk, a copy or a restore may do it."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from timerstore.errors import InvalidArgumentError

_PAGE_BYTES: Final = 4_096


def flip_bit(file: Path, at: int | bytes, bit: int = 0) -> int:
    """Turn a bit of a file over; return which byte it is in. `at`: that byte, or what begins there.

    It is done in place, as a store may have the file mapped.
    """
    with file.open("r+b") as opened:
        place = opened.read().index(at) if isinstance(at, bytes) else at
        opened.seek(place)
        (byte,) = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ 1 << bit]))
    return place


def _used(file: Path, piece_bytes: int) -> list[int]:
    """Return where the pieces of a file begin in which anything is."""
    with file.open("rb") as opened:
        data = opened.read()
    return [at for at in range(0, len(data), piece_bytes) if any(data[at : at + piece_bytes])]


def _write(file: Path, at: int, data: bytes) -> None:
    """Write to a file in place, within its size."""
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data[: max(0, file.stat().st_size - at)])


def _page(file: Path, rnd: random.Random) -> tuple[int, bytes]:
    """Return a page of a file, mostly one in which something is: where it begins, what it holds."""
    at = rnd.choice(_used(file, _PAGE_BYTES) or [0])
    with file.open("rb") as opened:
        opened.seek(at)
        return at, opened.read(_PAGE_BYTES)


def _flipped_bit(file: Path, other: Path, rnd: random.Random) -> str:
    used = _used(file, 1)
    at = rnd.choice(used) if used and rnd.random() < 0.8 else rnd.randrange(file.stat().st_size)
    bit = rnd.randrange(8)
    flip_bit(file, at, bit)
    return f"bit {bit} of byte {at}"


def _zeroed(file: Path, rnd: random.Random, piece_bytes: int) -> str:
    at = rnd.choice(_used(file, piece_bytes) or [0])
    _write(file, at, bytes(piece_bytes))
    return f"{piece_bytes} bytes from byte {at} on"


def _torn(file: Path, other: Path, rnd: random.Random) -> str:
    at = rnd.choice(_used(file, 512) or [0]) + rnd.randrange(512)
    _write(file, at, bytes(max(0, file.stat().st_size - at)))
    return f"zeros from byte {at} on"


def _truncated(file: Path, other: Path, rnd: random.Random) -> str:
    at = rnd.randrange(file.stat().st_size)
    os.truncate(file, at)
    return f"its end from byte {at} on"


def _missing(file: Path, other: Path, rnd: random.Random) -> str:
    file.unlink()
    return "all of it"


def _swapped(file: Path, other: Path, rnd: random.Random) -> str:
    away = file.with_name(file.name + ".away")
    file.rename(away)
    other.rename(file)
    away.rename(other)
    return f"with {other.name}"


def _swapped_page(file: Path, other: Path, rnd: random.Random) -> str:
    (at, page), (to, beside) = _page(file, rnd), _page(other, rnd)
    _write(file, at, beside)
    _write(other, to, page)
    return f"the page at byte {at} with that at byte {to} of {other.name}"


def _duplicated(file: Path, other: Path, rnd: random.Random) -> str:
    shutil.copyfile(other, file)
    return f"it holds what {other.name} holds"


def _duplicated_page(file: Path, other: Path, rnd: random.Random) -> str:
    at, page = _page(other, rnd)
    to, _ = _page(file, rnd)
    _write(file, to, page)
    return f"byte {to} on holds the page at byte {at} of {other.name}"


_KINDS: Final[dict[str, Callable[[Path, Path, random.Random], str]]] = {
    "flipped bit": _flipped_bit,
    "zeroed sector": lambda file, other, rnd: _zeroed(file, rnd, 512),
    "zeroed page": lambda file, other, rnd: _zeroed(file, rnd, _PAGE_BYTES),
    "torn": _torn,
    "truncated": _truncated,
    "missing": _missing,
    "swapped": _swapped,
    "swapped page": _swapped_page,
    "duplicated": _duplicated,
    "duplicated page": _duplicated_page,
    "stale": _duplicated,
    "stale page": _duplicated_page,
}
_OF_TWO: Final = ("swapped", "duplicated")
DAMAGE_KINDS: Final = tuple(_KINDS)
"""What `damage` can do to a file."""


def damage(
    path: str | os.PathLike[str],
    kind: str,
    rnd: random.Random,
    *,
    files: str = "**/*",
    older: str | os.PathLike[str] | None = None,
) -> tuple[Path, str]:
    """Damage a file below a folder; return which, and what was done, in words.

    `kind`: one of `DAMAGE_KINDS`. `files`: a pattern of those of which one is taken, by chance.
    What is swapped or duplicated is another file of its folder that fits the pattern; of pages, it
    may be the same file.
    `older`: a copy of the folder from before, which what is stale comes from. Nobody may have the
    store open. Raises InvalidArgumentError if no file fits.

    >>> import random
    >>> from timerstore.testing import damage
    >>> timerstore.open("damaged").close()
    >>> file, what = damage("damaged", "flipped bit", random.Random(1), files="commitlog/*")
    """
    if kind not in _KINDS:
        raise InvalidArgumentError(f"There is no damage {kind!r}. Take one of {DAMAGE_KINDS}.")
    is_stale = kind.startswith("stale")
    if is_stale and older is None:
        raise InvalidArgumentError("Damage that is stale needs a copy from before: pass older=….")
    before = Path(older) if is_stale and older is not None else Path(path)
    found = [
        each
        for each in sorted(Path(path).glob(files))
        if each.is_file() and each.stat().st_size and each.name not in ("lock", "abort")
        if (before / each.relative_to(path)).is_file()
    ]
    if kind in _OF_TWO:
        folders = Counter(each.parent for each in found)
        found = [each for each in found if folders[each.parent] > 1]
    if not found:
        raise InvalidArgumentError(f"{path} has no file {files} for this damage: {kind}.")
    file = rnd.choice(found)
    beside = [each for each in found if each.parent == file.parent and each != file]
    other = before / file.relative_to(path) if is_stale else rnd.choice(beside or [file])
    return file, f"{kind}: {_KINDS[kind](file, other, rnd)}"
