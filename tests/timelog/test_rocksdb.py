"""What lies in RocksDB is refused, by name, on every way into a store."""

from collections.abc import Callable
from pathlib import Path

import pytest

import timerstore
from timerstore import Config, NotAStoreError, Tuning, verify
from timerstore.validation import validate

WAYS: list[Callable[[Path], object]] = [
    timerstore.open,
    lambda path: timerstore.open(path, read_only=True),
    verify,
    validate,
]
WAL = bytes.fromhex("b1a4e8f03e0001010000000000000002000000") + b"\x05\x01\x20"
"""How a log of RocksDB begins: a record, a batch, a key of the second column family."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s"
    config = Config(durability="process", tuning=Tuning(commitlog_segment_bytes=1 << 16))
    with timerstore.open(path, config=config) as store:
        store.put(b"x", delay_level=1)
    return path


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_queues(path: Path, way: int) -> None:
    (path / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000004\n")
    before = sorted(path.rglob("*"))
    with pytest.raises(NotAStoreError, match=r"queues in RocksDB \(consumequeue/\)"):
        WAYS[way](path)
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("000004.log", WAL + b"sys_topic_scan_offset_checkpoint\x08" + bytes(8)),
        ("000013.sst", bytes(100_000) + b"\x16\x04\x05nametimer\n\x08\x1amparator" + bytes(500)),
    ],
)
def test_timers(path: Path, way: int, name: str, data: bytes) -> None:
    (path / "rocksdbstore").mkdir()
    (path / "rocksdbstore" / name).write_bytes(data)
    with pytest.raises(NotAStoreError, match=f"timers in RocksDB.*{name}"):
        WAYS[way](path)


def test_what_5_4_always_makes_is_no_reason(path: Path) -> None:
    folder = path / "rocksdbstore"
    folder.mkdir()
    for name, data in (
        ("CURRENT", b"MANIFEST-000005\n"),
        ("MANIFEST-000005", b"\xc9\x01\x05timer\xc8\x01\x02\xc9\x01\x05trans"),
        ("000004.log", b""),
        ("000013.sst", bytes(300) + b"\x16\x04\x05nametrans\n\x08\x1amparator" + bytes(500)),
    ):
        (folder / name).write_bytes(data)
    with timerstore.open(path) as store:
        assert store.count() <= 1
    assert verify(path).ok
