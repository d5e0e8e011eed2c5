"""A store of which a broker would lose a part is not handed over: each kind of damage."""

import zlib
from datetime import timedelta
from pathlib import Path

import pytest

from tests.services.test_cleaning import START_MS
from tests.store.test_broker_files import open_large
from timerstore import ManualClock, TimerStoreError, salvage
from timerstore.services.engine.rebuild import MARK_FILE
from timerstore.testing.damage import flip_bit

pytestmark = pytest.mark.whole

SEGMENT_BYTES, MESSAGE_COUNT = 1 << 18, 450
MAGICS = {0xDAA320A7, 0xDAA320AB}
BLANK = 0xCBD43194


def read_as_a_broker(path: Path) -> list[int]:
    """Return the offsets of the messages that it reads before it ends the log; naive."""
    files = sorted((path / "commitlog").iterdir())
    found = []
    for number, file in enumerate(files):
        data, at = file.read_bytes(), 0
        while True:
            words = (data[i : i + 4] for i in range(at, at + 12, 4))
            size, magic, crc = (int.from_bytes(word, "big") for word in words)
            left = len(data) - at
            if left <= 4 or size > left or magic not in {*MAGICS, BLANK}:
                return found
            if magic == BLANK:
                break
            body_at = at + 84
            body_bytes = int.from_bytes(data[body_at : body_at + 4], "big")
            topic_at = body_at + 4 + body_bytes
            properties_at = topic_at + 1 + data[topic_at]
            properties_bytes = int.from_bytes(data[properties_at : properties_at + 2], "big")
            body = data[body_at + 4 : topic_at]
            whole = size == properties_at + 2 + properties_bytes - at
            if not whole or crc != zlib.crc32(body) & 2**31 - 1:
                return found
            found.append(number * len(data) + at)
            at += size
    return found


def lived(path: Path) -> tuple[ManualClock, str, str]:
    """Live in a store; return its clock, an id that was read long ago, one that is pending."""
    clock = ManualClock(START_MS, force=True)
    with open_large(path, clock) as store:
        read = store.put(b"read" * 20, topic="t")
        clock.advance(timedelta(seconds=2))
        assert [(d.id, d.ack()) for d in store.pull("t", timeout=0)] == [(read, None)]
        bodies = [b"%04d" % i * 500 for i in range(MESSAGE_COUNT)]
        ids = store.put_many(bodies, topic="billing", delay=timedelta(hours=1))
        clock.advance(timedelta(seconds=2))
    return clock, read, ids[7]


def blank_at(path: Path) -> int:
    """Where the first segment is closed."""
    data = (path / "commitlog" / f"{0:020d}").read_bytes()
    return data.rindex(BLANK.to_bytes(4, "big")) - 4


def try_to_hand_over(path: Path, clock: ManualClock) -> str:
    """Return what was said against it, nothing if it was done."""
    with open_large(path, clock) as store:
        try:
            store.handover()
        except TimerStoreError as e:
            assert store.put(b"it goes on", delay=timedelta(hours=2))
            return str(e)
    return ""


def offset_of(id: str) -> int:
    return int(id[12:24], 16)


@pytest.mark.tier("prove", only=("read-byte[19]", "pending-byte*[50]"))
@pytest.mark.parametrize("byte", [1, 5, 9, 100, 170], ids=lambda byte: f"byte{byte}")
@pytest.mark.parametrize("what", ["read", "pending"])
def test_a_damaged_message(what: str, byte: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    clock, *ids = lived(path)
    id = ids[what == "pending"]
    flip_bit(path / "commitlog" / f"{0:020d}", offset_of(id) + byte)
    said = try_to_hand_over(path, clock)
    assert f"commitlog at offset {offset_of(id)}: " in said and "salvage" in said
    if byte >= 9:
        assert id in said and f"topic '{'billing' if what == 'pending' else 't'}'" in said
    assert not (path / "config" / "broker.conf").exists()
    salvage(path, tmp_path / "sound", clock=clock)
    assert try_to_hand_over(tmp_path / "sound", clock) == ""
    with open_large(tmp_path / "sound", clock) as store:
        assert store.count("billing") == MESSAGE_COUNT - (what == "pending")


@pytest.mark.parametrize(
    ("byte", "bit", "passed"),
    [(3, 0, None), (6, 0, False), (0, 6, False), (14, 0, True), (40, 0, True)],
    ids=["length", "magic", "length beyond", "seal", "behind"],
)
def test_what_closes_a_segment(byte: int, bit: int, passed: bool | None, tmp_path: Path) -> None:
    """A broker looks at eight bytes: the magic number, and that the length is not too large."""
    path = tmp_path / "s"
    clock, *_ = lived(path)
    whole = read_as_a_broker(path)
    at = blank_at(path)
    flip_bit(path / "commitlog" / f"{0:020d}", at + byte, bit)
    if passed is None:
        passed = read_as_a_broker(path) == whole
    assert (read_as_a_broker(path) == whole) is passed
    said = try_to_hand_over(path, clock)
    assert (f"commitlog at offset {at}: " in said) is not passed
    assert (said == "") is passed
    if passed:
        assert set(whole) <= set(read_as_a_broker(path))


def test_a_damaged_unit_is_made_anew_before(tmp_path: Path) -> None:
    """A broker ends its timer log there; the next opening makes all units again."""
    path = tmp_path / "s"
    clock, *_ = lived(path)
    flip_bit(path / "timerlog" / f"{0:020d}", 52 * 9 + 30)
    assert "timer index" in try_to_hand_over(path, clock)
    assert (path / MARK_FILE).exists()
    assert try_to_hand_over(path, clock) == ""
    with open_large(path, clock) as store:
        assert store.count("billing") == MESSAGE_COUNT


def test_a_damaged_entry_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    clock, *_ = lived(path)
    queue = next((path / "consumequeue" / "t" / "0").iterdir())
    sound = queue.read_bytes()
    flip_bit(queue, 5)
    assert try_to_hand_over(path, clock) == ""
    assert queue.read_bytes()[:20] == sound[:20]


def test_many_places_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "s"
    clock, _, id = lived(path)
    offsets = read_as_a_broker(path)
    first = offsets.index(offset_of(id))
    for offset in offsets[first : first + 30]:
        flip_bit(path / "commitlog" / f"{0:020d}", offset + 100)
    said = try_to_hand_over(path, clock)
    assert "30 places" in said and "… and 10 more" in said and said.count("\n") == 21


def test_a_sound_store_is_read_as_a_broker_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    clock, *_ = lived(path)
    assert try_to_hand_over(path, clock) == ""
    offsets = read_as_a_broker(path)
    assert len(offsets) > MESSAGE_COUNT and offsets[-1] > 2 * SEGMENT_BYTES
