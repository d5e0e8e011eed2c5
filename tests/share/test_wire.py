"""Frames are read as they were sent, in whatever pieces they come."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.share.wire import LostError, Wire


class Pieces:
    """A socket that keeps what is sent, and gives what it has in pieces of these lengths."""

    def __init__(self, data: bytes = b"", lengths: list[int] | None = None) -> None:
        self.data, self._lengths = data, cycle(lengths or [1])

    def settimeout(self, _: None) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.data += data

    def recv(self, count: int) -> bytes:
        count = min(count, next(self._lengths))
        come, self.data = self.data[:count], self.data[count:]
        return come


NUMBERS = st.integers(0, 1 << 62)
BODIES = st.binary(max_size=40) | st.binary(min_size=5_000, max_size=20_000)
RESTS = st.dictionaries(st.sampled_from(("key", "tag")), st.text(max_size=9))
PUTS = st.builds(
    lambda topic, at_ms, rest, again, number, since, body: (
        {
            "call": "put",
            "with": rest | {"topic": topic} | ({"at_ms": at_ms} if at_ms else {}),
            **({"again": True} if again else {}),
            "number": number,
            "since": since,
        },
        [body],
    ),
    *(st.text(max_size=9), st.integers(0, 1 << 50), RESTS, st.booleans(), NUMBERS, NUMBERS, BODIES),
)
IDS = st.builds(
    lambda id, end, more, parts: ({"result": f"{id:032X}", "end": end} | more, parts),
    *(NUMBERS, NUMBERS, st.sampled_from(({}, {"life": "x"})), st.lists(BODIES, max_size=1)),
)
OTHERS = st.tuples(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3),
    st.lists(BODIES, max_size=3),
)


@given(
    frames=st.lists(PUTS | IDS | OTHERS, max_size=5),
    lengths=st.lists(st.integers(1, 9) | st.just(1 << 20), min_size=1, max_size=4),
)
def test_frames_come_whole_in_any_pieces(
    frames: list[tuple[dict[str, Any], list[bytes]]], lengths: list[int]
) -> None:
    sent: Any = Pieces()
    for header, parts in frames:
        Wire(sent).send(dict(header), parts)
    came: Any = Pieces(sent.data, lengths)
    wire = Wire(came)
    for header, parts in frames:
        found, found_parts = wire.receive()
        if found.pop("again", False):
            found["again"] = True
        found.pop("parts", None)
        assert found == header
        assert [bytes(each) for each in found_parts] == parts
    with pytest.raises(LostError):
        wire.receive()
