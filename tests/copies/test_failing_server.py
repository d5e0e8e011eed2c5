"""A server that fails in every way: nothing is lost, health says why, it goes on by itself."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import timerstore
from tests.copies.test_follow import Followed
from tests.rigs.failing_server import FAILURES, OTHERS, FailingServer, failing_server
from tests.tiers import some
from timerstore import TimerStoreError
from timerstore.copies.destination import find_destination
from timerstore.copies.standby import Standby

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def server(
    s3_environment: dict[str, str], s3: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FailingServer]:
    """It stands before the server of all tests."""
    with failing_server(s3_environment["AWS_ENDPOINT_URL"]) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.address)
        yield found


@pytest.mark.parametrize("how", some((*FAILURES, *OTHERS), 5))
def test_it_goes_on_by_itself(server: FailingServer, s3: str, tmp_path: Path, how: str) -> None:
    kept = Followed(tmp_path, s3, every_s=0.1)
    server.hang_s = 8.0
    kept.put(30)
    kept.follower.step()
    assert kept.follower.status.error is None
    kept.put(30)
    if how in ("wrong bytes", "nonsense", "half"):  # what is read: so it reads
        kept.follower._shipper = None
    server.how, began_s = how, time.monotonic()
    for _ in range(2):
        wait_s = kept.follower.step()
        assert 0 <= wait_s <= 1
    assert time.monotonic() - began_s < 120
    error = kept.follower.status.error
    if how != "wrong bytes":
        assert error is not None, server.seen[-9:]
        kept.clock.advance(timedelta(seconds=1))
        (warning,) = kept.store.health().warnings
        assert warning.kind == "copy is behind" and error[:40] in warning.what
        assert "secret" not in error and "whatever" not in error
    server.how = None
    kept.put(30)
    kept.follower.step()
    assert kept.follower.status.error is None, kept.follower.status.error
    assert kept.store.health().warnings == ()
    assert kept.count_restored() == 90
    assert timerstore.verify(s3).ok


@pytest.mark.parametrize("how", some(("wrong bytes", "throttled", "half", "cut"), 4))
def test_who_reads_is_told(server: FailingServer, s3: str, tmp_path: Path, how: str) -> None:
    """An error of ours, and nothing is left; a standby keeps what it had."""
    kept = Followed(tmp_path, s3)
    kept.put(40)
    kept.follower.step()
    standby = Standby(tmp_path / "local", find_destination(s3), s3)
    standby.step()
    kept.put(40)
    kept.follower.step()
    server.how = how
    with pytest.raises(TimerStoreError):
        kept.restore()
    assert not kept.restored.exists() and not list(tmp_path.glob(".*"))
    with pytest.raises(TimerStoreError):
        standby.step()
    server.how = None
    assert timerstore.verify(tmp_path / "local").ok
    assert standby.step().copied_bytes > 0
    standby.close()
    assert kept.count_restored() == 80
