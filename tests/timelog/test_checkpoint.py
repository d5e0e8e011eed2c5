"""Checkpoints: round trips, writes that are torn at any byte, a broker's rewrite."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import timerstore
from tests import naive
from tests.small_store import SMALL
from tests.watched import StoppedHereError, Watched
from timerstore import ManualClock
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import (
    TimerCheckpoint,
    decode_checkpoint,
    read_checkpoint,
    write_checkpoint,
    write_store_checkpoint,
)
from timerstore.timelog.files.disk import Disk

WORDS = st.integers(-(2**63), 2**63 - 1)
CURSORS = st.integers(0, 2**48)
CHECKPOINTS = st.builds(
    TimerCheckpoint,
    **dict.fromkeys(
        ("read_ms", "timerlog_flushed", "queue_index", "scan_from", "commitlog_flushed"), CURSORS
    ),
    **dict.fromkeys(
        ("state_version", "state_timestamp", "state_counter", "claimed_slot", "frontier_ms"), WORDS
    ),
    sequence=st.integers(1, 2**40),
    clean=st.booleans(),
    cancelled_count=CURSORS,
    store_tag=st.integers(0, 2**32 - 1),
    level_offsets=st.lists(CURSORS, min_size=32, max_size=32),
)


def image(first: bytes, second: bytes) -> bytes:
    """A file of both copies."""
    return first.ljust(fmt.CHECKPOINT_COPY_AT, b"\0") + second.ljust(
        fmt.CHECKPOINT_BYTES - fmt.CHECKPOINT_COPY_AT, b"\0"
    )


def base_of(checkpoint: TimerCheckpoint) -> bytes:
    """The 56 bytes, as the slow twin writes them."""
    return naive.encode_timercheck(
        naive.TimerCheck(
            *(checkpoint.read_ms, checkpoint.timerlog_flushed, checkpoint.queue_index),
            *(checkpoint.queue_index, checkpoint.state_version, checkpoint.state_timestamp),
            checkpoint.state_counter,
        )
    )


def pair(old: TimerCheckpoint, new: TimerCheckpoint) -> tuple[bytes, bytes]:
    """Both encoded, as one flush follows the other."""
    new.sequence = old.sequence + 1
    return old.encode(), new.encode()


@given(checkpoint=CHECKPOINTS)
def test_a_checkpoint_comes_back(checkpoint: TimerCheckpoint) -> None:
    data = checkpoint.encode()
    assert data[:56] == base_of(checkpoint)
    assert len(data) <= 512
    assert decode_checkpoint(image(data, data)) == checkpoint
    assert decode_checkpoint(data) == checkpoint


def torn(old: bytes, new: bytes) -> list[bytes]:
    """What can stand where `new` was written over `old`: cut at any byte."""
    return [new[:k] + old[k:] for k in range(len(new) + 1)]


@given(old=CHECKPOINTS, new=CHECKPOINTS)
def test_a_torn_write_of_either_copy_leaves_one_that_holds(
    old: TimerCheckpoint, new: TimerCheckpoint
) -> None:
    before, after = pair(old, new)
    for second in torn(before, after):
        assert decode_checkpoint(image(before, second)) == old
    for first in torn(before, after):
        expected = old if first == before else new
        assert decode_checkpoint(image(first, after)) == expected


@given(new=CHECKPOINTS, cut=st.integers(0, 511))
def test_the_first_write_of_all_may_be_torn(new: TimerCheckpoint, cut: int) -> None:
    data = new.encode()
    cut = min(cut, len(data) - 1)
    assume(any(data[cut:]))  # else nothing is missing
    assert decode_checkpoint(image(b"", data[:cut])) is None
    # Until the first copy is whole, the second holds.
    assert decode_checkpoint(image(data[:cut], data)) == new
    for length in (0, 10, 55, 56, 100, 2048, 2100):
        assert decode_checkpoint(bytes(length)) is None


@given(old=CHECKPOINTS, new=CHECKPOINTS, written=CHECKPOINTS)
def test_a_broker_writes_the_first_56_bytes(
    old: TimerCheckpoint, new: TimerCheckpoint, written: TimerCheckpoint
) -> None:
    before, after = pair(old, new)
    base = base_of(written)
    mixes = [before[i] == base[i] or after[i] == base[i] for i in range(56)]
    if all(mixes):
        return
    # After a completed flush, then after one that a crash left between its copies.
    for first, second in ((before, before), (before, after), (after, after)):
        got = decode_checkpoint(image(base + first[56:], second))
        assert got is not None
        assert got.by_broker
        assert base_of(got) == base
        assert got.store_tag == (new if first == after else old).store_tag
        assert got.scan_from == 0


@given(checkpoint=CHECKPOINTS, data=st.binary(max_size=4096))
def test_any_bytes(checkpoint: TimerCheckpoint, data: bytes) -> None:
    for content in (data, data.ljust(4096, b"\0"), base_of(checkpoint) + data):
        got = decode_checkpoint(content)
        assert got is None or got.by_broker


def test_writing_is_atomic_under_an_interrupt_at_each_event(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    old = TimerCheckpoint(5, 6, 7, sequence=1)
    new = TimerCheckpoint(8, 9, 10, sequence=2, scan_from=3)
    assert read_checkpoint(path) is None
    first = Watched()
    write_checkpoint(first, path, old)
    kinds = [kind for kind, name in first.events if name == "timercheck"]
    assert kinds == ["write", "sync", "write", "sync"]
    assert first.events[-1] == ("sync_folder", "config")
    assert path.stat().st_size == fmt.CHECKPOINT_BYTES
    assert read_checkpoint(path) == old
    for stop_at in range(4):
        with pytest.raises(StoppedHereError):
            write_checkpoint(Watched(stop_at), path, new)
        assert read_checkpoint(path) == (new if stop_at == 3 else old)
        write_checkpoint(Disk(), path, old)
    write_checkpoint(Disk(), path, new)
    assert read_checkpoint(path) == new
    for stop_at in range(len(first.events)):
        other = tmp_path / str(stop_at) / "timercheck"
        with pytest.raises(StoppedHereError):
            write_checkpoint(Watched(stop_at), other, new)
        assert read_checkpoint(other) in (None, new)
        write_checkpoint(Disk(), other, new)
        assert read_checkpoint(other) == new


def test_the_stores_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_store_checkpoint(Disk(), path, 123, 456)
    expected = naive.encode_checkpoint(naive.Checkpoint(123, 123, 0, 0, 456))
    assert path.read_bytes() == expected.ljust(4096, b"\0")


@pytest.mark.parametrize(
    "damaged",
    [
        lambda data: data + b"x",
        lambda data: data + bytes(4_096),
        lambda data: data[:-1],
        lambda data: data[:1_000],
        lambda data: data[:10],
        lambda data: b"",
        lambda data: data[:1_500] + b"x" + data[1_501:],
        lambda data: data[:4_000] + b"x" + data[4_001:],
    ],
    ids=["longer", "a page longer", "shorter", "half", "no cursors", "empty", "between", "behind"],
)
def test_what_is_wrong_with_the_file_does_not_outlive_an_opening(
    tmp_path: Path, damaged: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "s"
    with timerstore.open(path, config=SMALL, clock=ManualClock()) as store:
        store.put(b"x", topic="t", delay=5)
    file = path / "config" / "timercheck"
    file.write_bytes(damaged(file.read_bytes()))
    assert not timerstore.verify(path).ok
    with timerstore.open(path, clock=ManualClock()) as store:
        assert store.count() == 1
    assert timerstore.verify(path).ok and len(file.read_bytes()) == 4_096
