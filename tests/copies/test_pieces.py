"""How objects are packed, which pieces make up a log."""

import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.copies.catalog import (
    BLOCK_BYTES,
    FRAME_BYTES,
    Piece,
    Slice,
    block_ranges,
    cover,
    pack,
    pack_checked,
    parts_of,
    piece_of,
    unpack,
    unpack_whole,
)
from timerstore.errors import CorruptStoreError
from timerstore.jit.crc import crc_of, joined

SEED = 0xC0FFEE
"""What the checksums of a chain begin with."""


@given(st.binary(max_size=300), st.integers(0, 2_600_000))
def test_what_was_packed_comes_back(head: bytes, zeros: int) -> None:
    data = head + bytes(zeros) + head
    packed = pack(data)
    assert unpack_whole(packed, "x") == data
    assert all(0 < len(raw) <= FRAME_BYTES for raw, _ in unpack(packed, "x"))
    assert pack_checked(data, SEED) == (packed, zlib.crc32(data, SEED))


@given(st.binary(max_size=70), st.binary(max_size=70), st.integers(0, 1 << 22))
def test_checksums_of_parts_are_joined(first: bytes, second: bytes, zeros: int) -> None:
    second += bytes(zeros)
    found = joined(zlib.crc32(first), zlib.crc32(second), len(second))
    assert found == zlib.crc32(first + second)


@given(st.binary(max_size=70), st.integers(0, 1 << 20), st.integers(0, 0xFFFFFFFF))
def test_a_checksum_is_zlib_s(data: bytes, zeros: int, seed: int) -> None:
    data += bytes(zeros)
    assert crc_of(data) == crc_of(memoryview(bytearray(data))) == zlib.crc32(data)
    assert crc_of(data, seed) == zlib.crc32(data, seed)


def test_a_prefix_can_be_read() -> None:
    data = bytes(range(256)) * 4 * 4_096
    frames = unpack(pack(data)[:-1], "x")
    found = b"".join(next(frames)[0] for _ in range(3))
    assert len(found) == 3 * FRAME_BYTES and data.startswith(found)
    with pytest.raises(CorruptStoreError, match="length, or was cut off"):
        next(frames)


@given(st.binary(min_size=1, max_size=400), st.data())
def test_a_piece_that_was_changed_is_refused(content: bytes, data: st.DataObject) -> None:
    piece = Piece(4_096, 4_096 + len(content), 1, zlib.crc32(content, SEED))
    packed = bytearray(pack(content))
    assert list(parts_of(piece, bytes(packed), SEED)) == [(4_096, content)]
    with pytest.raises(CorruptStoreError, match="does not match the checksum in its name"):
        list(parts_of(piece, bytes(packed), SEED ^ 1))  # of another store's chain
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(packed) - 1))
    for wrong in (bytes(packed), bytes(packed[:cut]), pack(content + b"x"), pack(b"")):
        found = list[tuple[int, memoryview]]()
        with suppress(CorruptStoreError):  # zstd does not look at every bit
            found = list(parts_of(piece, wrong, SEED))
        assert found in ([], [(4_096, content)])


def test_names_are_read_as_they_are_written() -> None:
    piece = Piece(7, 4_096, 12, 0xABCDEF)
    assert piece_of(piece.name.removeprefix("log/")) == piece
    wrong = ["x", "00000001/1-2-3.zst", piece.name]
    for start, end in ((7, 7), (9, 7), (0, 1 << 63)):
        wrong.append(f"00000001/{start:020d}-{end:020d}-00000000.zst")
    wrong.append(f"00000000/{0:020d}-{1:020d}-00000000.zst")
    assert [piece_of(each) for each in wrong] == [None] * len(wrong)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30)


@given(SPANS, st.integers(0, 60), st.integers(1, 40))
def test_a_cover_holds_each_byte_once(spans: list[tuple[int, int]], start: int, count: int) -> None:
    parts = [Slice(Piece(at, at + n, 1, i), at, at + n) for i, (at, n) in enumerate(spans)]
    end, held = start + count, {at for first, n in spans for at in range(first, first + n)}
    missing = [at for at in range(start, end) if at not in held]
    if missing:
        with pytest.raises(CorruptStoreError) as caught:
            cover(parts, start, end)
        assert caught.value.offset == missing[0]
        return
    found = cover(parts, start, end)
    assert [at for part in found for at in range(part.start, part.end)] == [*range(start, end)]
    assert all(p.piece.start <= p.start < p.end <= p.piece.end for p in found)


@given(st.integers(0, 5 * BLOCK_BYTES), st.integers(0, 3 * BLOCK_BYTES), st.integers(1, 3))
def test_no_piece_crosses_a_block(start: int, count: int, segments: int) -> None:
    size = BLOCK_BYTES * segments // 2 + 4_096
    at = start
    for first, stop in block_ranges(start, start + count, size):
        assert first == at < stop and stop - first <= BLOCK_BYTES
        assert first // size == (stop - 1) // size
        assert first % size // BLOCK_BYTES == (stop - 1) % size // BLOCK_BYTES
        at = stop
    assert at == start + count
