"""A disk that can lose its power: what was not synced is gone, or there in part."""

import random
from pathlib import Path

from tests.models.archive import ArchivingDisk
from tests.models.quiet_disk import QuietDisk
from timerstore.timelog.files.disk import MappedFile

SECTOR_BYTES = 512


class PowerCutError(Exception):
    """The machine stops here."""


class PowerDisk(ArchivingDisk, QuietDisk):
    """Remembers what each file held when it was synced last, and names that are not durable.

    With `stop_after` = n it stops at the n-th event from now.
    """

    def __init__(self, root: Path, synced: dict[Path, bytes]) -> None:
        self.root, self.synced = root, synced
        self.stop_after = -1
        self.renames: list[tuple[Path, Path]] = []  # since their folder was synced
        self.replacing: dict[Path, bytes] = {}  # synced before its name is changed

    def event(self, kind: str, path: Path) -> None:
        """Count down to the cut."""
        if self.stop_after > 0:
            self.stop_after -= 1
        if self.stop_after == 0:
            raise PowerCutError

    def sync(self, file: MappedFile | int, path: Path) -> None:
        """What the file holds now is safe."""
        super().sync(file, path)
        self.synced[path] = path.read_bytes()

    def replace(self, path: Path, data: bytes) -> None:
        """Rename: the content was synced before it, so either the old or the new one is whole."""
        self.replacing[path] = data
        try:
            super().replace(path, data)
        finally:
            if path.exists() and path.read_bytes() == data:
                self.synced[path] = data

    def rename(self, path: Path, name: Path) -> bool:
        """The file goes on under another name, until its folder is synced perhaps."""
        done = super().rename(path, name)
        if done:
            self.renames.append((path, name))
            if path in self.synced:
                self.synced[name] = self.synced.pop(path)
        return done

    def sync_folder(self, path: Path) -> None:
        """What was renamed in it is safe."""
        super().sync_folder(path)
        self.renames = [each for each in self.renames if each[0].parent != path]

    def remove(self, path: Path) -> None:
        """Remove for good."""
        super().remove(path)
        self.synced.pop(path, None)

    def cut(self, target: Path, rnd: random.Random) -> dict[Path, bytes]:
        """Write to `target` what a power cut now would leave; return it, for it is synced there.

        Of each file the synced content, and any sectors that the kernel wrote back on its own.
        """
        target.mkdir()
        share = rnd.choice((0.0, 0.3, 0.9))
        old_names = {name: path for path, name in self.renames if rnd.random() < 0.5}
        for path in sorted(self.root.rglob("*")):
            where = target / old_names.get(path, path).relative_to(self.root)
            if path.is_dir():
                where.mkdir(parents=True, exist_ok=True)
                continue
            if path.name == "lock":
                continue
            now = path.read_bytes()
            safe = now if self.replacing.get(path) == now else self.synced.get(path)
            if safe is None and path.parent == self.root:
                continue  # a name that the folder may not have yet
            safe = (b"" if safe is None else safe).ljust(len(now), b"\0")
            out = bytearray(safe)
            for at in range(0, len(now), SECTOR_BYTES):
                sector = now[at : at + SECTOR_BYTES]
                if sector != safe[at : at + SECTOR_BYTES] and rnd.random() < share:
                    out[at : at + SECTOR_BYTES] = sector
            where.write_bytes(out)
        return {file: file.read_bytes() for file in target.rglob("*") if file.is_file()}
