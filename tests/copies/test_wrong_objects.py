"""Objects that are not as they were written: a restore says so, or gives what the store held.

What was restored is always what the store held at the point that the report names.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import timerstore
from tests.copies.kept import AHEAD_MS, TINY, objects
from tests.copies.test_follow import Followed
from tests.copies.test_standby import Pair
from tests.tiers import PROVING
from timerstore import CorruptStoreError, TimerStoreError
from timerstore.copies.backup import remove_needless
from timerstore.copies.catalog import read_catalog
from timerstore.copies.destination import Destination, find_destination
from timerstore.copies.follower import merge_pieces
from timerstore.timelog.reading.reader import StoreReader

pytestmark = [pytest.mark.timeout(600 if PROVING else 120), pytest.mark.long]
EVERY: Final = 1 if PROVING else 23
"""One in so many changes is tried."""


class Copies:
    """A destination that a promoted store continued, and another store's; what each point held."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held = folder, dict[int, set[str]]()
        self.pair = Pair(folder, f"file://{folder}/objects")
        for _ in range(3):
            self.pair.ship(9)
            self.keep(self.pair.kept.path)
        self.pair.fetch()
        self.pair.promote()
        with timerstore.open(self.pair.local, config=TINY, clock=self.pair.kept.clock) as store:
            for _ in range(3):
                store.put_many([b"new"] * 30, topic="t", delay_ms=AHEAD_MS)
                self.pair.kept.tick()
                store.backup(self.pair.place)
                self.keep(self.pair.local)
        self.names = objects(self.pair.place)
        other = Followed(folder, f"file://{folder}/others", "other")
        for _ in range(12):
            other.put(9)
            other.follower.step()
        other.follower.close()
        other.store.close()
        self.pair.close()

    def keep(self, path: Path) -> None:
        number = timerstore.backup_points(self.pair.place)[-1].number
        with timerstore.open(path, read_only=True, config=TINY) as store:
            self.held[number] = {each.id for each in store.pending()}

    def check(self, folder: Path, what: str, *, may_be_earlier: bool = False) -> bool:
        """Restore from a folder; return whether it was refused."""
        restored = folder.parent / "restored"
        try:
            report = timerstore.restore(
                f"file://{folder}", restored, config=TINY, clock=self.pair.kept.clock
            )
        except TimerStoreError:
            assert not restored.exists()
            return True
        assert may_be_earlier or report.point == max(self.held), what
        with timerstore.open(restored, read_only=True, config=TINY) as store:
            assert {each.id for each in store.pending()} == self.held[report.point], what
        assert report.ok, what
        shutil.rmtree(restored)
        return False


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    return Copies(tmp_path_factory.mktemp("copies"))


def changes(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what may become of an object's bytes."""
    rnd = random.Random(len(data))
    yield "empty", b""
    yield "zeros", bytes(len(data))
    for _ in range(4):
        yield "cut", data[: rnd.randrange(len(data))]
        at = rnd.randrange(len(data))
        flipped = bytes([data[at] ^ 1 << rnd.randrange(8)])
        yield f"flipped at {at}", data[:at] + flipped + data[at + 1 :]
    yield "longer", data + b"\0"
    yield "twice", data + data


def test_an_object_that_is_another(copies: Copies, tmp_path: Path) -> None:
    """Cut, flipped, swapped with another one, or of another store."""
    folder, refused = tmp_path / "objects", 0
    shutil.copytree(copies.folder / "objects", folder)
    others = [each for each in (copies.folder / "others").rglob("*") if each.is_file()]
    tried = 0
    for number, name in enumerate(copies.names):
        file, kind = folder / name, name.partition("/")[0]
        data = file.read_bytes()
        cases = list(changes(data))
        cases += [(each, (folder / each).read_bytes()) for each in copies.names if each != name]
        cases += [(f"other {each.name}", each.read_bytes()) for each in others]
        for index, (what, wrong) in enumerate(cases):
            if wrong == data or (index + number) % EVERY:
                continue
            file.write_bytes(wrong)
            refused += copies.check(folder, f"{name}: {what}")
            tried += 1
        file.write_bytes(data)
        if kind == "points" and name == max(n for n in copies.names if n.startswith("points")):
            file.write_bytes(data[: len(data) // 2])
            with pytest.raises(CorruptStoreError, match=name):
                timerstore.restore(f"file://{folder}", tmp_path / "restored")
            file.write_bytes(data)
    assert refused > tried // 3


def test_an_object_that_is_gone(copies: Copies, tmp_path: Path) -> None:
    """The last point may be missed: then the report names the one before."""
    for number, name in enumerate(copies.names):
        folder = tmp_path / str(number) / "objects"
        shutil.copytree(copies.folder / "objects", folder)
        (folder / name).unlink()
        refused = copies.check(folder, name, may_be_earlier=name.startswith("points/"))
        if name.endswith(".json"):
            assert refused


def test_objects_that_came_in_addition(copies: Copies, tmp_path: Path) -> None:
    """Of another store, under their names, or of nobody."""
    folder = tmp_path / "objects"
    shutil.copytree(copies.folder / "objects", folder)
    for name in ("x", "points/x", "log/00000001/y.zst", "chains/z.json", "points/00000001/.zst"):
        (folder / name).write_bytes(b"nothing")
    (folder / "log" / "00000001" / "a").mkdir()
    assert not copies.check(folder, "unknown ones")
    others = copies.folder / "others"
    for each in sorted(each for each in others.rglob("*") if each.is_file()):
        target = folder / each.relative_to(others)
        if target.exists():
            continue
        shutil.copy(each, target)
        is_refused = copies.check(folder, f"{target} of another store")
        assert is_refused or not target.name.endswith(".json")
        target.unlink()
    shutil.copytree(others, folder, dirs_exist_ok=True)
    with pytest.raises(CorruptStoreError, match="chains"):
        timerstore.restore(f"file://{folder}", tmp_path / "restored")


class Late(Destination):
    """Another destination, of which some lists lack some objects that are there."""

    def __init__(self, inner: Destination, hides: Callable[[str], bool]) -> None:
        super().__init__(inner.fs, inner.root, inner.shown)
        self.hides = hides

    def names(self, folder: str) -> list[str]:
        return [each for each in super().names(folder) if not self.hides(f"{folder}/{each}")]


def test_lists_that_come_late(
    copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that lacks objects for a while gives an earlier point or an error, never less."""
    rnd, refused = random.Random(3), 0
    place = f"file://{copies.folder}/objects"
    for number in range(400 if PROVING else 30):
        lists = rnd.randrange(1, 4)
        left, part = [lists], rnd.choice((0.1, 0.5, 1.0))
        hidden = {each for each in copies.names if rnd.random() < part}
        kinds = rnd.sample(("chains", "points", "log"), rnd.randrange(1, 4))

        def hides(name: str) -> bool:
            return left[0] > 0 and name in hidden and name.startswith(tuple(kinds))  # noqa: B023

        late = Late(find_destination(place), hides)
        plain = late.names

        def names(folder: str) -> list[str]:
            found = plain(folder)  # noqa: B023
            left[0] -= 1  # noqa: B023
            return found

        late.names = names  # type: ignore[method-assign]
        monkeypatch.setattr("timerstore.copies.restore.find_destination", lambda path: late)  # noqa: B023
        refused += copies.check(
            copies.folder / "objects", f"{number}: {sorted(hidden)}", may_be_earlier=True
        )
    assert refused


def test_pieces_that_are_merged_while_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list may lack the large piece and the small ones: one that comes later has it."""
    monkeypatch.setattr("timerstore.copies.follower._FEW", 1)
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    for _ in range(8):
        kept.put(20)
        kept.follower.step()
    dest = find_destination(str(kept.dest))
    catalog = read_catalog(dest)
    before, lists = {piece.name for piece in catalog.pieces}, [0]
    assert merge_pieces(StoreReader(kept.path, kept.follower._levels), catalog)
    assert remove_needless(catalog)

    def hides(name: str) -> bool:
        return lists[0] == 1 and name not in before

    late = Late(dest, hides)
    plain = late.names

    def names(folder: str) -> list[str]:
        lists[0] += folder == "log"
        return plain(folder)

    late.names = names  # type: ignore[method-assign]
    monkeypatch.setattr("timerstore.copies.restore.find_destination", lambda path: late)
    assert kept.restore().pending_count == 160


def test_a_claim_that_is_not_listed_is_taken_back(tmp_path: Path) -> None:
    """Else it stood in the way of the next try, and of the one who writes there."""
    kept = Followed(tmp_path, f"file://{tmp_path}/objects")
    kept.put(5)
    kept.follower.step()
    kept.follower.close()
    inner = find_destination(str(kept.dest))
    hidden = [True]
    late = Late(inner, lambda name: hidden[0])
    follower = kept.follow()
    follower._find = lambda: late
    follower.dest = late
    follower.step()
    assert "does not list" in str(follower.status.error)
    hidden[0] = False
    kept.put(5)
    follower.step()
    assert follower.status.error is None
    assert [each.endswith("json") for each in inner.names("chains")] == [False, True]
    assert kept.restore().pending_count == 10
    follower.close()
