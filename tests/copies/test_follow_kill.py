"""What was shipped outlives the disk: owner, follower are killed, then the folder is gone.

FOLLOW_KILLS=200 in the environment does so that often; CI does with fewer.
"""

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import timerstore
from tests.models.ledger import read_ledger
from tests.rigs.follow_worker import CONFIG, prepare, work
from tests.tiers import SEED, how_many
from timerstore.copies.follow_status import CopyStatus, read_statuses
from timerstore.testing import Program

pytestmark = pytest.mark.on_disk

ROUNDS = how_many("FOLLOW_KILLS", 4, 200)
ONE_LIFE = 12
"""Rounds after which another store begins, so that the slow ledger has not too much to read."""


class Account:
    """What owners of one store said, as far as it was shipped."""

    def __init__(self) -> None:
        self.put: set[str] = set()
        self.cancelled: set[str] = set()
        self.asked: set[str] = set()

    def take(self, said: list[str], before_ms: float) -> None:
        for line in said:
            word, *more = line.split()
            if word == "cancelling":
                self.asked.add(more[0])
            elif int(more[0]) < before_ms:
                (self.put if word == "put" else self.cancelled).update(more[1:])


def check_restored(path: Path, report: timerstore.RestoreReport, account: Account) -> None:
    """Compare a restored store with what was said, and with its own log."""
    assert report.ok, report
    ledger = read_ledger(path)
    ledger.check()  # nothing is fired twice, or fired and cancelled
    roots = {root.key: root for root in ledger.roots.values()}
    lost = account.put - roots.keys()
    assert not lost, f"{len(lost)} puts that were shipped are lost"
    for id in account.cancelled:
        assert roots[id].deleted, f"{roots[id]} was cancelled, and is still to come"
    for root in roots.values():
        assert not root.deleted or root.key in account.asked
    assert report.pending_count == sum(root.pending for root in roots.values())
    pending = {root.key for root in roots.values() if root.pending}
    with timerstore.open(path, read_only=True, config=CONFIG) as store:
        assert {each.id for each in store.pending()} == pending


def said_last(path: Path) -> CopyStatus | None:
    """What the follower said, of which the kill left something."""
    found = [each for each in read_statuses(path) if each.shipped_ms]
    return found[0] if found else None


@pytest.mark.tier("prove", only=("s3",))
@pytest.mark.slow
@pytest.mark.timeout(90 + 20 * ROUNDS)
@pytest.mark.parametrize("kind", ["file", "s3"])
def test_what_was_shipped_outlives_the_disk(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """So often it was shipped, lost and restored; a follower may be killed before that, too."""
    rounds = ROUNDS if kind == "file" or ROUNDS > 4 else 2
    base = f"file://{tmp_path}/copy" if kind == "file" else request.getfixturevalue("s3")
    slower = 1.0 if kind == "file" else 2.0  # a follower that begins asks a server six times
    rnd, restored_count = random.Random(SEED), 0
    with (
        Program(work, prepare=prepare) as owners,
        Program(work, prepare=prepare) as followers,
        ThreadPoolExecutor(2) as pool,
    ):
        for number in range(6 * rounds):
            life = number // ONE_LIFE
            path, address = tmp_path / f"store{life}", f"{base}{life}"
            if number % ONE_LIFE == 0:
                account = Account()
                timerstore.open(path, config=CONFIG).close()
            kills_s = [rnd.uniform(*rnd.choice(((0.05, 0.4), (0.4, 1.5)))) for _ in range(2)]
            seeds = [rnd.randrange(1 << 30) for _ in range(2)]
            ended = [
                pool.submit(each.kill, path, seed, role, address, after_s=slower * kill_s)
                for each, role, seed, kill_s in zip(
                    (owners, followers), ("own", "follow"), seeds, kills_s, strict=True
                )
            ]
            said, _ = (each.result().said for each in ended)
            status = said_last(path)
            if status is None:
                account.take(said, float("inf"))
                slower *= 1.3  # else a busy machine may never come so far
                continue  # nothing was shipped yet: both go on with the same folder
            account.take(said, status.shipped_ms)
            shutil.rmtree(path)
            report = timerstore.restore(address, path, config=CONFIG)
            check_restored(path, report, account)
            restored_count += 1
            if restored_count % 20 == 1:
                assert timerstore.verify(address, config=CONFIG).ok
            if restored_count == rounds:
                break
    assert restored_count == rounds
