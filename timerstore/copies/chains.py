"""Who may write to a backup: its chains, of which only the newest one grows.

A *chain* is what one line of a store's life has written, one after the other. A new one begins
with the first point, if the store had removed what followed the last point, or if a copy became the
store (`promote`). It says from which offset on the log's bytes are its own, and up to
which point what stood there before goes on to hold. What an older chain's writer adds after that
is seen by nobody. Chains of which each one continues the one before without a gap are a *run*.

    chains/NUMBER-NAME.claim     written first; then all claims are listed
    chains/NUMBER-NAME.json      written by who found no other claim of that number

Two that claim the same number at once both see it, or one does: who sees another gives up. This
asks of the file system that a list shows what was written before it, as all object stores do by
now, and no conditional write, which pyarrow does not have.
"""

from __future__ import annotations

import json
import sys
import uuid
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final

from timerstore.copies.destination import Destination
from timerstore.core.directory import CHAIN_FILE, CHAINS_FOLDER
from timerstore.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    NotAStoreError,
    StoreAccessError,
    StoreLockedError,
)
from timerstore.timelog.files.checkpoint import SIZES
from timerstore.timelog.files.disk import Disk
from timerstore.timelog.files.jsonfile import read_json, sealed, understood, whole, write_json
from timerstore.timelog.files.names import INT32_MAX
from timerstore.timelog.files.reader_end import Read, read_file
from timerstore.timelog.reading.reader import StoreReader

# --- whether a store was restored to before a point
#
# What was restored goes on from the end that it was cut to, under the same tag. A file of the
# store, `config/restored.json`, says so, one restore after the other, and comes along into its next
# backups.


RESTORED_FILE: Final = "config/restored.json"

Restores = list[dict[str, Any]]


def read_restores(path: Path, read: Read = read_file) -> Restores:
    """Return how a store was restored, the first time first; nothing if it never was."""
    content = read_json(path / RESTORED_FILE, read) or {}
    return check_restores(content.get("restores", []))


def check_restores(restores: object) -> Restores:
    """Return a list of restores that was read. Raises CorruptStoreError if it is none."""
    if not isinstance(restores, list) or not all(
        isinstance(each, dict) and isinstance(each.get("log_end"), int) for each in restores
    ):
        raise CorruptStoreError(RESTORED_FILE, 0, "it is no list of restores")
    return restores


def note_restore(disk: Disk, path: Path, log_end: int) -> None:
    """Say that a store goes on from `log_end`; durable on return."""
    restores = [*read_restores(path), {"log_end": log_end, "name": uuid.uuid4().hex}]
    write_json(disk, path / RESTORED_FILE, {"restores": restores})


def shared_end(before: Restores, since: Restores) -> int:
    """Return up to which commit log offset a store has the log that it had.

    `before`, `since`: how it had been restored then and by now. A store that was not restored since
    has all of it.
    """
    pairs = zip(before, since, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return min((each["log_end"] for each in (*before[same:], *since[same:])), default=sys.maxsize)


def find_divergence(reader: StoreReader, before: Restores, log_end: int, backup: object) -> None:
    """Raise InvalidArgumentError if the store is not what became of a point in `backup`.

    `before`, `log_end`: how the store had been restored by then, and where its log ended.
    """
    since = read_restores(reader.path, reader.steady.read)
    if since[: len(before)] == before and shared_end(before, since) >= log_end:
        return
    raise InvalidArgumentError(
        f"{reader.path} was restored to a time before the last point in {backup}, so the two "
        "logs differ from there on. Pass a new folder."
    )


# --- who may write


_VERSION: Final = 2
_BEGUN, _PROMOTED = b'{"promoted": false}', b'{"promoted": true}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One chain of a backup."""

    number: int
    name: str
    run: int
    """The number of the first chain of the log that it continues without a gap; or its own."""
    store_tag: int
    sizes: dict[str, int | None]
    base: int
    """From this offset on the log's bytes are its own; before it, the chain before has them."""
    last_point: int
    """Points of the chains before are seen up to this number; 0 if there is none."""
    restores: Restores
    """How the store was restored that writes it."""

    @property
    def segment_bytes(self) -> int:
        """Return the length of a commit log segment."""
        size = self.sizes["commitlog_segment_bytes"]
        assert size is not None
        return size

    @property
    def seed(self) -> int:
        """What the checksums of its points and pieces begin with: no other chain's match."""
        return zlib.crc32(self.name.encode())


@dataclass(frozen=True, slots=True)
class Chains:
    """What is known of a destination's chains at one moment."""

    known: list[Chain]
    """Those that were begun, the oldest one first."""
    newest_claim: tuple[int, str]
    """Number and name of the newest claim, (0, "") if there is none."""

    @property
    def is_open(self) -> bool:
        """Whether the newest claim is of a chain that was not begun."""
        number, name = self.newest_claim
        return not any((each.number, each.name) == (number, name) for each in self.known)

    def run_of(self, number: int) -> int:
        """Return the run of a chain. Raises CorruptStoreError if that chain is not known."""
        for each in self.known:
            if each.number == number:
                return each.run
        raise CorruptStoreError(CHAINS_FOLDER, 0, f"what tells of chain {number} is missing")


def read_chains(dest: Destination) -> Chains:
    """Read all chains. Raises CorruptStoreError, NotAStoreError, StoreAccessError."""
    claims, begun = _listed(dest)
    known = [_read(dest, number, name) for number, name in sorted(begun)]
    for before, after in pairwise(known):
        if before.number == after.number:
            reason = f"two chains have the number {after.number}"
            raise CorruptStoreError(CHAINS_FOLDER, 0, reason)
    if len({each.store_tag for each in known} - {-1}) > 1:
        raise CorruptStoreError(CHAINS_FOLDER, 0, "there are chains of several stores")
    return Chains(known, max(claims | begun, default=(0, "")))


def newest_claim(dest: Destination) -> tuple[int, str]:
    """Return number and name of the newest claim; (0, "") if there is none. One request."""
    claims, begun = _listed(dest)
    return max(claims | begun, default=(0, ""))


def _listed(dest: Destination) -> tuple[set[tuple[int, str]], set[tuple[int, str]]]:
    claims, begun = set[tuple[int, str]](), set[tuple[int, str]]()
    for each in dest.names(CHAINS_FOLDER):
        found = CHAIN_FILE.fullmatch(each)
        if found is not None and 0 < int(found[1]) <= INT32_MAX:
            (begun if found[3] == "json" else claims).add((int(found[1]), found[2]))
    return claims, begun


def claim_chain(dest: Destination, after: int, *, promoted: bool = False) -> tuple[int, str]:
    """Claim the next chain; who wrote before is refused from now on. Return its number and name.

    A claim that never became a chain stands in nobody's way, unless it is of a copy that is being
    `promoted`.
    Raises StoreLockedError if somebody else claims one at the same time, StoreAccessError if the
    destination does not list what was written.
    """
    claim = (after + 1, uuid.uuid4().hex)
    dest.put(_object(*claim, "claim"), _PROMOTED if promoted else _BEGUN)
    claims, begun = _listed(dest)
    if claim not in claims:
        with suppress(StoreAccessError):
            dest.remove(_object(*claim, "claim"))  # the next try would take it for another's
        raise incomplete_list(dest)
    if any(each != claim and each[0] >= claim[0] for each in claims | begun):
        dest.remove(_object(*claim, "claim"))
        raise StoreLockedError(
            f"Another process began to write to {dest} at the same moment. Only one store may "
            "write to a destination: find out which process it is, then try again."
        )
    return claim


def incomplete_list(dest: Destination) -> StoreAccessError:
    """Return the error of a list that lacks what was written: some answer nonsense for a while."""
    return StoreAccessError(
        f"{dest} does not list a file that was just written there. A backup needs a place that "
        "shows at once what was written. Check whether a proxy or a cache answers in its place."
    )


def is_promotion(dest: Destination, claim: tuple[int, str]) -> bool:
    """Tell whether a claim is of a copy that is being promoted. One request."""
    try:
        return dest.get(_object(*claim, "claim")) != _BEGUN
    except FileNotFoundError:
        return False


def begin_chain(dest: Destination, chain: Chain) -> None:
    """Say what a chain is that was claimed."""
    text = json.dumps(sealed({"version": _VERSION} | asdict(chain)), indent=1)
    dest.put(_object(chain.number, chain.name, "json"), text.encode())


def _object(number: int, name: str, kind: str) -> str:
    return f"{CHAINS_FOLDER}/{number:08d}-{name}.{kind}"


def _read(dest: Destination, number: int, name: str) -> Chain:
    file = Path(_object(number, name, "json"))
    data = dest.get(str(file))
    content = read_json(file, lambda _: data)
    if content is None:
        raise CorruptStoreError(str(file), 0, "it is empty")
    if content.get("version") != _VERSION:
        raise NotAStoreError(
            f"The backup in {dest} has version {content.get('version')!r}, and this timerstore "
            f"reads version {_VERSION}. Use the timerstore that made the backup."
        )
    with understood(str(file)):
        if (content["number"], content["name"]) != (number, name):
            raise ValueError("it tells of another chain than its name")
        return chain_of(content)


def chain_of(content: dict[str, Any]) -> Chain:
    """Return the chain that a file tells of; raises what `understood` takes if it tells of none."""
    sizes = {
        each: None if content["sizes"][each] is None else whole(content["sizes"][each], 1)
        for each in SIZES
    }
    whole(sizes["commitlog_segment_bytes"], 1)
    number = whole(content["number"], 1, INT32_MAX)
    if not isinstance(content["name"], str):
        raise ValueError("the chain's name is no text")
    return Chain(
        number=number,
        name=content["name"],
        run=whole(content["run"], 1, number),
        store_tag=whole(content["store_tag"], -1),
        sizes=sizes,
        base=whole(content["base"]),
        last_point=whole(content["last_point"], 0, INT32_MAX),
        restores=check_restores(content["restores"]),
    )
