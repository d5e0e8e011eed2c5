"""Arrow arrays of NumPy's numbers, or of texts that stand in the commit log.

The memory that a kernel filled becomes the array's; no row is ever a Python object.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from timerstore.jit.record import Words
from timerstore.tables.schema import ARROW_TYPES, MAP, STRING, TIMESTAMP
from timerstore.timelog.files.segmenttable import SegmentTable
from timerstore.timelog.reading import scan as kernels

MS_MIN: Final = -62_135_596_800_000
MS_MAX: Final = 253_402_300_799_999
"""What a timestamp can show, the years 1 to 9999; other times are null, and stand beside in ms."""
Flags = np.ndarray[Any, Any]


class Log(Protocol):
    """A commit log whose segments are mapped: a reader's, or that of an open store."""

    @property
    def table(self) -> SegmentTable:
        """The table that kernels find segments in."""


def _validity(valid: Flags | None) -> Any:
    """Return Arrow's bitmap; None if all are valid."""
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def numbers(values: Any, kind: str, valid: Flags | None = None) -> Any:
    """Return bigints or ints; `valid`: bool[n], what is not null."""
    kind_in_arrow = ARROW_TYPES[kind]
    data = np.ascontiguousarray(values, kind_in_arrow.to_pandas_dtype())
    return pa.Array.from_buffers(kind_in_arrow, len(data), [_validity(valid), pa.py_buffer(data)])


def booleans(values: Flags) -> Any:
    """Return booleans of bool[n]."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def timestamps(values_ms: Any, kind: str = TIMESTAMP, valid: Flags | None = None) -> Any:
    """Return timestamps of int64[n], ms since 1970."""
    values_ms = np.asarray(values_ms, np.int64)
    within = (values_ms >= MS_MIN) & (values_ms <= MS_MAX)
    if valid is not None:
        within &= valid
    data = np.where(within, values_ms, 0) * 1_000
    return pa.Array.from_buffers(
        ARROW_TYPES[kind], len(data), [_validity(within), pa.py_buffer(data)]
    )


def _starts(lengths: Words) -> Any:
    starts = np.zeros(len(lengths) + 1, np.int64)
    lengths = lengths if lengths.min(initial=0) >= 0 else np.maximum(lengths, 0)
    np.cumsum(lengths, out=starts[1:])
    assert starts[-1] < 1 << 31, "a batch is cut before its texts take 2 GiB"
    return starts.astype(np.int32)


def texts(log: Log, places: Words, lengths: Words, kind: str) -> Any:
    """Return strings or binaries that stand in mapped segments; null if the length is < 0."""
    if lengths.max(initial=-1) < 0:
        return pa.nulls(len(lengths), ARROW_TYPES[kind])
    starts = _starts(lengths)
    data = np.empty(int(starts[-1]), np.uint8)
    kernels.copy_texts(log.table, np.ascontiguousarray(places), starts, data)
    return _of_buffers(kind, starts, data, _validity(lengths >= 0))


def _of_buffers(kind: str, starts: Any, data: Any, validity: Any = None) -> Any:
    array = pa.Array.from_buffers(
        ARROW_TYPES[kind], len(starts) - 1, [validity, pa.py_buffer(starts), pa.py_buffer(data)]
    )
    return _as_utf8(array) if kind == STRING else array


def _as_utf8(array: Any) -> Any:
    """Replace what is no UTF-8, which Arrow refuses in strings."""
    try:
        array.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raw = array.cast(pa.binary()).to_pylist()
        whole = [None if each is None else each.decode("utf-8", "replace") for each in raw]
        return pa.array(whole, ARROW_TYPES[STRING])
    return array


def maps(log: Log, places: Words, lengths: Words, hidden: frozenset[str] = frozenset()) -> Any:
    """Return the properties that stand in mapped segments, without those of `hidden` names."""
    places, lengths = np.ascontiguousarray(places), np.ascontiguousarray(lengths)
    counts, left_out = np.zeros((len(places), 3), np.int64), _names(hidden)
    given = log.table, places, lengths, left_out, counts
    none = np.zeros(1, np.int32), np.zeros(0, np.uint8)
    kernels.list_properties(*given, kernels.PropertyTexts(*none, *none))
    starts = _starts(counts[:, 0])
    total = int(starts[-1])
    name_starts, value_starts = np.zeros(total + 1, np.int32), np.zeros(total + 1, np.int32)
    names = np.empty(int(counts[:, 1].sum()), np.uint8)
    values = np.empty(int(counts[:, 2].sum()), np.uint8)
    kernels.list_properties(*given, kernels.PropertyTexts(name_starts, names, value_starts, values))
    pairs = [_of_buffers(STRING, name_starts, names), _of_buffers(STRING, value_starts, values)]
    kind = ARROW_TYPES[MAP]
    entries = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(
        kind, len(places), [None, pa.py_buffer(starts)], children=[entries]
    )


@lru_cache(maxsize=4)
def _names(names: frozenset[str]) -> kernels.Names:
    each = [name.encode() for name in sorted(names)]
    starts = np.cumsum([0, *map(len, each)])
    return kernels.Names(np.frombuffer(b"".join(each) + b" ", np.uint8), starts)


def repeated(text: str, count: int) -> Any:
    """Return the same string `count` times."""
    data = np.tile(np.frombuffer(text.encode("utf-8", "replace"), np.uint8), count)
    starts = np.arange(count + 1, dtype=np.int64) * (len(data) // max(1, count))
    return _of_buffers(STRING, starts.astype(np.int32), data)
