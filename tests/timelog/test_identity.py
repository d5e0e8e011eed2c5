"""What a store was made with: the file, its copies, which of them holds."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.errors import CorruptStoreError, NotAStoreError
from timerstore.timelog.bytes import format as fmt
from timerstore.timelog.files.checkpoint import (
    SIZES,
    Identity,
    decode_identity,
    find_identity,
    parse_identity,
    write_identity,
)
from timerstore.timelog.files.disk import Disk

COUNTS = st.integers(1, 2**40)
IDENTITIES = st.builds(
    Identity,
    store_tag=st.integers(0, 2**32 - 1),
    **dict.fromkeys((*SIZES, "roll_hop_slots"), COUNTS),
)
ONE = Identity(
    store_tag=7,
    precision_ms=100,
    roll_window_slots=60,
    wheel_slot_count=128,
    commitlog_segment_bytes=4_096,
    consumequeue_segment_bytes=60,
    timerlog_segment_bytes=520,
)


@given(IDENTITIES, st.integers(0, fmt.IDENTITY.itemsize - 1), st.integers(0, 7))
def test_a_copy_is_whole_or_none(identity: Identity, at: int, bit: int) -> None:
    data = identity.encode()
    assert len(data) == fmt.IDENTITY.itemsize
    assert decode_identity(data + b"rest") == identity
    assert decode_identity(data[:-1]) is None
    flipped = bytearray(data)
    flipped[at] ^= 1 << bit
    assert decode_identity(bytes(flipped)) is None
    assert decode_identity(bytes(len(data))) is None


def test_a_new_store_hops_as_far_as_leads_ahead() -> None:
    assert ONE.roll_hop_slots == ONE.roll_window_slots - 1


def write_copies(path: Path, first: bytes, second: bytes) -> None:
    content = bytearray(4_096)
    content[fmt.IDENTITY_AT : fmt.IDENTITY_AT + len(first)] = first
    at = fmt.CHECKPOINT_COPY_AT + fmt.IDENTITY_AT
    content[at : at + len(second)] = second
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "timercheck").write_bytes(content)


@pytest.mark.parametrize("first", [True, False])
def test_either_copy_does(tmp_path: Path, first: bool) -> None:
    damaged = b"\1" + ONE.encode()[1:]
    write_copies(tmp_path, *((ONE.encode(), damaged) if first else (damaged, ONE.encode())))
    found, fault = find_identity(tmp_path)
    assert found == ONE and fault is not None and "missing or damaged" in fault.reason
    write_identity(Disk(), tmp_path, ONE)
    assert find_identity(tmp_path) == (ONE, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"  \n",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"{}",
        b'{"version": 1}',
        b'{"version": 9}',
        b"\0" * 80,
    ],
)
def test_the_copy_holds_where_the_file_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "timerstore.json").write_bytes(content)
    write_copies(tmp_path, ONE.encode(), ONE.encode())
    found, fault = find_identity(tmp_path)
    assert found == ONE and fault is not None and fault.file == "timerstore.json"


def test_the_copy_holds_where_the_two_differ(tmp_path: Path) -> None:
    write_identity(Disk(), tmp_path, replace(ONE, precision_ms=1_000))
    write_copies(tmp_path, ONE.encode(), b"")
    found, fault = find_identity(tmp_path)
    assert found == ONE and fault is not None and "timercheck" in fault.reason


def test_without_a_copy_the_file_holds(tmp_path: Path) -> None:
    assert find_identity(tmp_path) == (None, None)
    write_identity(Disk(), tmp_path, ONE)
    assert find_identity(tmp_path) == (ONE, None)
    (tmp_path / "timerstore.json").write_text("{")
    found, fault = find_identity(tmp_path)
    assert found is None and fault is not None


@pytest.mark.parametrize("in_copy", [False, True])
def test_another_version_is_refused(tmp_path: Path, in_copy: bool) -> None:
    newer = replace(ONE, version=3)
    if in_copy:
        write_copies(tmp_path, newer.encode(), newer.encode())
    else:
        write_identity(Disk(), tmp_path, newer)
    with pytest.raises(NotAStoreError, match="version 3"):
        find_identity(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        *[
            {name: value}
            for name in (*SIZES, "roll_hop_slots")
            for value in (0, -1, "x", None, 1 << 48)
        ],
        {"version": "one"},
        {"consumequeue_segment_bytes": 21},
        {"store_tag": 1e400},
    ],
)
def test_what_the_file_may_say(change: dict[str, object]) -> None:
    described = json.loads(json.dumps(asdict(ONE)))
    assert parse_identity(described) == ONE
    with pytest.raises(CorruptStoreError, match=r"timerstore\.json"):
        parse_identity(described | change)
