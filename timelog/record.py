"""Records: named groups of arrays that kernels receive as one pointer.

A NamedTuple of arrays would be passed to every compiled function by value, seven words for each
array; with the fifty arrays of a store that makes compiling ten times slower and calls dearer. A
record is passed as the address of a block of (address, length) pairs, and a field becomes an array
only where it is used. The arrays of a record are fixed when it is made.

    @record
    class SegmentTable:
        words: Words
        address: Words

Interpreted kernels see the Python object itself, whose attributes are the arrays.
"""

from __future__ import annotations

from typing import Any, TypeVar, dataclass_transform, get_type_hints

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import NativeValue, models, register_model, typeof_impl, unbox
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.np.arrayobj import make_array, populate_array

T = TypeVar("T")

Words = np.ndarray[Any, np.dtype[np.int64]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_ITEMS: tuple[tuple[Any, Any], ...] = (
    (Words, types.int64),
    (Int32s, types.int32),
    (Bytes, types.uint8),
)
_I64 = ir.IntType(64)


class RecordType(types.Type):
    """The Numba type of a record class: its fields with their place in the block."""

    def __init__(self, name: str, fields: tuple[tuple[str, Any], ...]) -> None:
        """`fields`: (name, array type or RecordType)."""
        self.fields = fields
        self.places: dict[str, tuple[Any, int]] = {}
        self.length: int = 0
        place = 0
        for field, kind in fields:
            self.places[field] = kind, place
            place += kind.length if isinstance(kind, RecordType) else 2
        self.length = place
        super().__init__(name=f"{name}({', '.join(f'{n}: {k.name}' for n, k in fields)})")


@register_model(RecordType)
class _RecordModel(models.PrimitiveModel):
    """A record is the address of its block."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _I64)


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, record: Any, name: str) -> Any:
        place = record.places.get(name)
        return None if place is None else place[0]


@lower_getattr_generic(RecordType)
def _lower_field(context: Any, builder: Any, record: Any, value: Any, name: str) -> Any:
    kind, place = record.places[name]
    address = builder.add(value, _I64(8 * place))
    if isinstance(kind, RecordType):
        return address
    loaded = []
    for offset in (0, 8):
        pointer = builder.inttoptr(builder.add(address, _I64(offset)), _I64.as_pointer())
        word = builder.load(pointer, align=8)
        # The block never changes, so that one load serves for a whole function.
        word.set_metadata("invariant.load", builder.module.add_metadata([]))
        loaded.append(word)
    array = make_array(kind)(context, builder)
    element = context.get_data_type(kind.dtype)
    itemsize = _I64(context.get_abi_sizeof(element))
    populate_array(
        array,
        data=builder.inttoptr(loaded[0], element.as_pointer()),
        shape=cgutils.pack_array(builder, [loaded[1]]),
        strides=cgutils.pack_array(builder, [itemsize]),
        itemsize=itemsize,
        meminfo=None,
    )
    return array._getvalue()


@unbox(RecordType)
def _unbox_record(kind: Any, value: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(value, "block_address")
    native = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    return NativeValue(native)


@dataclass_transform()
def record(cls: type[T]) -> type[T]:
    """Make a class of annotated arrays a record; its constructor takes them in order or by name."""
    hints = get_type_hints(cls)
    fields = tuple((name, _kind(hint)) for name, hint in hints.items())
    kind = RecordType(cls.__name__, fields)
    names = tuple(name for name, _ in fields)

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        values = dict(zip(names, args, strict=False)) | kwargs
        if set(values) != set(names):
            raise TypeError(f"{cls.__name__} takes {', '.join(names)}")
        block: list[int] = []
        for name, field in fields:
            value = values[name]
            if isinstance(field, RecordType):
                block.extend(value.block.tolist())
            else:
                assert value.dtype.name == field.dtype.name and value.flags.c_contiguous, name
                block += [value.ctypes.data, len(value)]
            setattr(self, name, value)
        self.block = np.array(block, np.int64)
        self.block_address = self.block.ctypes.data

    cls.__init__ = initialise  # type: ignore[method-assign]
    cls.numba_type = cls._numba_type_ = kind  # type: ignore[attr-defined]
    typeof_impl.register(cls)(lambda value, context: kind)
    return cls


def _kind(hint: Any) -> Any:
    for alias, item in _ITEMS:
        if hint == alias:
            return types.Array(item, 1, "C")
    return hint.numba_type
