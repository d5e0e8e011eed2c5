"""What only an instruction can say: loads, stores, copies, atomics, byte searches.

Each name has two forms. Compiled, it is an LLVM intrinsic of a few lines; under
`NUMBA_DISABLE_JIT=1` it is a plain Python twin that does the same with `struct`. Buffers are
one-dimensional C-contiguous uint8 arrays, `at` is a position in one. With `NUMBA_BOUNDSCHECK=1`
every access is checked against the buffer's length.

`view_bytes` and `view_words` turn an address into an array. They are how a kernel reaches mapped
segments, whose number changes while a kernel stays inside.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.core.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from timerstore.timelog.jit.kernel import INTERPRETED, inlined

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_BYTES = types.Array(types.uint8, 1, "C")
_WORDS = types.Array(types.int64, 1, "C")


def _pointer(
    context: Any, builder: Any, sig: Any, args: Any, which: int, at: Any, width: int
) -> Any:
    """Return an i8 pointer to element `at` of array argument `which`, checked if asked for."""
    array = make_array(sig.args[which])(context, builder, args[which])
    if config.BOUNDSCHECK:
        length = builder.extract_value(array.shape, 0)
        cgutils.do_boundscheck(context, builder, at, length)
        if width > 1:
            last = builder.add(at, _I64(width - 1))
            cgutils.do_boundscheck(context, builder, last, length)
    return builder.gep(builder.bitcast(array.data, _I8.as_pointer()), [at])


def _loader(width: int, *, big: bool, signed: bool) -> Any:
    """Make the intrinsic that loads an integer of `width` bytes as an int64."""

    @intrinsic
    def load(typingctx: Any, buf: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, sig, args, 0, args[1], width)
            kind = ir.IntType(8 * width)
            value = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)
            if big and width > 1:
                value = builder.call(
                    builder.module.declare_intrinsic("llvm.bswap", [kind]), [value]
                )
            if width == 8:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return types.int64(buf, types.int64), codegen

    code = {1: "b", 2: "h", 4: "i", 8: "q"}[width]
    layout = struct.Struct((">" if big else "<") + (code if signed else code.upper()))

    def twin(buf: Any, at: int) -> int:
        value = layout.unpack_from(buf, at)[0]
        return value - (1 << 64) if width == 8 and value >= 1 << 63 else value

    return twin if INTERPRETED else load


def _storer(width: int, *, big: bool) -> Any:
    """Make the intrinsic that stores the low `width` bytes of an int64."""

    @intrinsic
    def store(typingctx: Any, buf: Any, at: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, sig, args, 0, args[1], width)
            kind = ir.IntType(8 * width)
            value = args[2] if width == 8 else builder.trunc(args[2], kind)
            if big and width > 1:
                value = builder.call(
                    builder.module.declare_intrinsic("llvm.bswap", [kind]), [value]
                )
            builder.store(value, builder.bitcast(pointer, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(buf, types.int64, types.int64), codegen

    order = "big" if big else "little"
    mask = (1 << (8 * width)) - 1

    def twin(buf: Any, at: int, value: int) -> None:
        if not 0 <= at <= len(buf) - width:
            raise IndexError(at)
        buf[at : at + width] = np.frombuffer((int(value) & mask).to_bytes(width, order), np.uint8)  # type: ignore[arg-type]

    return twin if INTERPRETED else store


get_u8 = _loader(1, big=True, signed=False)
get_i16 = _loader(2, big=True, signed=True)
get_u16 = _loader(2, big=True, signed=False)
get_i32 = _loader(4, big=True, signed=True)
get_u32 = _loader(4, big=True, signed=False)
get_i64 = _loader(8, big=True, signed=True)
get_word = _loader(8, big=False, signed=True)
"""Eight bytes as they lie in memory, to be compared with a name's first eight (`as_word`)."""
put_u8 = _storer(1, big=True)
put_i16 = _storer(2, big=True)
put_i32 = _storer(4, big=True)
put_i64 = _storer(8, big=True)
put_word = _storer(8, big=False)


def as_word(name: bytes) -> int:
    """Return the first eight bytes of `name` as `get_word` would load them."""
    return int.from_bytes(name[:8].ljust(8, b"\0"), "little", signed=True)


@intrinsic
def _copy(typingctx: Any, dst: Any, at: Any, src: Any, start: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = _pointer(context, builder, sig, args, 0, args[1], 1)
        source = _pointer(context, builder, sig, args, 2, args[3], 1)
        if config.BOUNDSCHECK:
            last = builder.sub(args[4], _I64(1))
            _pointer(context, builder, sig, args, 0, builder.add(args[1], last), 1)
            _pointer(context, builder, sig, args, 2, builder.add(args[3], last), 1)
        cgutils.raw_memcpy(builder, to, source, args[4], _I64(1))
        return context.get_dummy_value()

    return types.void(dst, types.int64, src, types.int64, types.int64), codegen


def _copy_twin(dst: Any, at: int, src: Any, start: int, count: int) -> None:
    assert 0 <= at and at + count <= len(dst) and 0 <= start and start + count <= len(src)
    dst[at : at + count] = src[start : start + count]


copy_bytes = _copy_twin if INTERPRETED else _copy
"""copy_bytes(dst, at, src, start, count): copy `count` >= 1 bytes; the two must not overlap."""


@intrinsic
def _zero(typingctx: Any, buf: Any, at: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig, args, 0, args[1], 1)
        if config.BOUNDSCHECK:
            last = builder.add(args[1], builder.sub(args[2], _I64(1)))
            _pointer(context, builder, sig, args, 0, last, 1)
        cgutils.memset(builder, pointer, args[2], 0)
        return context.get_dummy_value()

    return types.void(buf, types.int64, types.int64), codegen


def _zero_twin(buf: Any, at: int, count: int) -> None:
    assert 0 <= at and at + count <= len(buf)
    buf[at : at + count] = 0


zero_bytes = _zero_twin if INTERPRETED else _zero
"""zero_bytes(buf, at, count): zero `count` >= 1 bytes."""


@intrinsic
def _copy_64(typingctx: Any, dst: Any, at: Any, src: Any, start: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = _pointer(context, builder, sig, args, 0, args[1], 64)
        source = _pointer(context, builder, sig, args, 2, args[3], 64)
        kind = ir.VectorType(_I8, 64).as_pointer()
        loaded = builder.load(builder.bitcast(source, kind), align=1)
        builder.store(loaded, builder.bitcast(to, kind), align=1)
        return context.get_dummy_value()

    return types.void(dst, types.int64, src, types.int64), codegen


def _copy_64_twin(dst: Any, at: int, src: Any, start: int) -> None:
    _copy_twin(dst, at, src, start, 64)


copy_64 = _copy_64_twin if INTERPRETED else _copy_64
"""copy_64(dst, at, src, start): copy 64 bytes, without a call; the two must not overlap."""


_COPIED_IN_LINES_MAX: Final = 512


@inlined
def copy_lines(dst: Any, at: int, src: Any, start: int, count: int) -> None:
    """Copy `count` >= 0 bytes; of less than 64, up to 64 bytes behind them may change as well.

    For what is written from front to back, and short: it is done without a call. The two must not
    overlap. O(count).
    """
    if count < 64 and start + 64 <= len(src) and at + 64 <= len(dst):
        copy_64(dst, at, src, start)
    elif count < 64 or count > _COPIED_IN_LINES_MAX:
        if count > 0:
            copy_bytes(dst, at, src, start, count)
    else:
        for i in range(0, count - 64, 64):
            copy_64(dst, at + i, src, start + i)
        copy_64(dst, at + count - 64, src, start + count - 64)


def _viewer(array_type: Any, itemsize: int, c_type: Any) -> Any:
    @intrinsic
    def view(typingctx: Any, address: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            array = make_array(array_type)(context, builder)
            element = context.get_data_type(array_type.dtype)
            populate_array(
                array,
                data=builder.inttoptr(args[0], element.as_pointer()),
                shape=cgutils.pack_array(builder, [args[1]]),
                strides=cgutils.pack_array(builder, [_I64(itemsize)]),
                itemsize=_I64(itemsize),
                meminfo=None,
            )
            return array._getvalue()

        return array_type(types.int64, types.int64), codegen

    def twin(address: int, count: int) -> Any:
        if count == 0:
            return np.zeros(0, array_type.dtype.name)
        return np.ctypeslib.as_array((c_type * int(count)).from_address(int(address)))

    return twin if INTERPRETED else view


view_bytes = _viewer(_BYTES, 1, ctypes.c_uint8)
"""view_bytes(address, count): a uint8 array over memory that the caller keeps alive."""
view_words = _viewer(_WORDS, 8, ctypes.c_int64)
"""view_words(address, count): an int64 array over memory that the caller keeps alive."""


# --- atomics on int64 arrays: what threads share without the GIL


def _word_pointer(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array = make_array(sig.args[0])(context, builder, args[0])
    if config.BOUNDSCHECK:
        length = builder.extract_value(array.shape, 0)
        cgutils.do_boundscheck(context, builder, args[1], length)
    return builder.gep(array.data, [args[1]])


@intrinsic
def _load_acquire(typingctx: Any, words: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_word_pointer(context, builder, sig, args), "acquire", 8)

    return types.int64(words, types.int64), codegen


@intrinsic
def _store_release(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word_pointer(context, builder, sig, args), "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@intrinsic
def _fetch_add(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _word_pointer(context, builder, sig, args)
        return builder.atomic_rmw("add", pointer, args[2], "seq_cst")

    return types.int64(words, types.int64, types.int64), codegen


@intrinsic
def _exchange(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _word_pointer(context, builder, sig, args)
        return builder.atomic_rmw("xchg", pointer, args[2], "seq_cst")

    return types.int64(words, types.int64, types.int64), codegen


@intrinsic
def _compare_exchange(typingctx: Any, words: Any, index: Any, expected: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _word_pointer(context, builder, sig, args)
        pair = builder.cmpxchg(pointer, args[2], args[3], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(words, types.int64, types.int64, types.int64), codegen


def _load_twin(words: Any, index: int) -> int:
    return int(words[index])


def _store_twin(words: Any, index: int, value: int) -> None:
    words[index] = value


_one_at_a_time = threading.Lock()


def _add_twin(words: Any, index: int, value: int) -> int:
    with _one_at_a_time:
        before = int(words[index])
        words[index] = before + value
        return before


def _exchange_twin(words: Any, index: int, value: int) -> int:
    with _one_at_a_time:
        before = int(words[index])
        words[index] = value
        return before


def _compare_exchange_twin(words: Any, index: int, expected: int, value: int) -> bool:
    with _one_at_a_time:
        if words[index] != expected:
            return False
        words[index] = value
        return True


load_acquire = _load_twin if INTERPRETED else _load_acquire
store_release = _store_twin if INTERPRETED else _store_release
fetch_add = _add_twin if INTERPRETED else _fetch_add
exchange = _exchange_twin if INTERPRETED else _exchange
compare_exchange = _compare_exchange_twin if INTERPRETED else _compare_exchange
"""compare_exchange(words, index, expected, value): set to `value` if it was `expected`; was it?"""


# --- hints, bits, searches


@intrinsic
def _touch(typingctx: Any, buf: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig, args, 0, args[1], 1)
        builder.atomic_rmw("or", pointer, _I8(0), "monotonic")
        return context.get_dummy_value()

    return types.void(buf, types.int64), codegen


def _touch_twin(buf: Any, at: int) -> None:
    assert 0 <= at < len(buf)


touch = _touch_twin if INTERPRETED else _touch
"""touch(buf, at): fault in the page of a mapped byte for writing, and change nothing."""


@intrinsic
def _prefetch(typingctx: Any, buf: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = make_array(sig.args[0])(
            context, builder, args[0]
        )  # a hint: never checked, never faults
        pointer = builder.gep(builder.bitcast(array.data, _I8.as_pointer()), [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        name = "llvm.prefetch.p0"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(buf, types.int64), codegen


def _prefetch_twin(buf: Any, at: int) -> None:
    return None


prefetch = _prefetch_twin if INTERPRETED else _prefetch
"""prefetch(buf, at): ask for the cache line at `at`; any value of `at` is allowed."""


@intrinsic
def _match_64(typingctx: Any, buf: Any, at: Any, byte: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig, args, 0, args[1], 64)
        kind = ir.VectorType(_I8, 64)
        loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)
        undefined = ir.Constant(kind, ir.Undefined)
        one = builder.insert_element(undefined, builder.trunc(args[2], _I8), _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, 64), [_I32(0)] * 64)
        wanted = builder.shuffle_vector(one, undefined, zeros)
        return builder.bitcast(builder.icmp_signed("==", loaded, wanted), _I64)

    return types.int64(buf, types.int64, types.int64), codegen


def _match_twin(buf: Any, at: int, byte: int) -> int:
    assert 0 <= at <= len(buf) - 64
    bits = int.from_bytes(
        np.packbits(buf[at : at + 64] == byte, bitorder="little").tobytes(), "little"
    )
    return bits - (1 << 64) if bits >= 1 << 63 else bits


match_64 = _match_twin if INTERPRETED else _match_64
"""match_64(buf, at, byte): bit i is set where the byte at `at` + i equals `byte`."""


@intrinsic
def _lowest_bit(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], _I1(0))

    return types.int64(types.int64), codegen


def _lowest_bit_twin(value: int) -> int:
    return (int(value) & -int(value)).bit_length() - 1 if value else 64


lowest_bit = _lowest_bit_twin if INTERPRETED else _lowest_bit
"""lowest_bit(value): index of the lowest set bit, 64 for 0."""


@intrinsic
def _bit_length(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.sub(_I64(64), builder.ctlz(args[0], _I1(0)))

    return types.int64(types.int64), codegen


def _bit_length_twin(value: int) -> int:
    return int(value).bit_length()


bit_length = _bit_length_twin if INTERPRETED else _bit_length
"""bit_length(value): how many bits a value >= 0 has, 0 for 0."""


@intrinsic
def _wrapping_multiply(typingctx: Any, a: Any, b: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.mul(*args)

    return types.int64(types.int64, types.int64), codegen


def _wrapping_multiply_twin(a: int, b: int) -> int:
    return (int(a) * int(b) + (1 << 63)) % (1 << 64) - (1 << 63)


wrapping_multiply = _wrapping_multiply_twin if INTERPRETED else _wrapping_multiply
"""wrapping_multiply(a, b): the lower 64 bits of the product.

Numba says of `a * b` that it never overflows (LLVM's `nsw`). Where it does, the result is whatever
the optimiser finds convenient, another thing in each caller: no good for a hash."""


@intrinsic
def _swap_64(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.bswap", [_I64]), [args[0]])

    return types.int64(types.int64), codegen


def _swap_twin(value: int) -> int:
    return int.from_bytes(
        (int(value) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little"), "big", signed=True
    )


swap_64 = _swap_twin if INTERPRETED else _swap_64
"""swap_64(value): the eight bytes of an int64 in the opposite order."""
