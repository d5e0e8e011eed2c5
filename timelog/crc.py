"""CRC-32 (zlib's polynomial) over bytes in a buffer.

Four CRCs stand in the life of one timer, so this is the hottest function of all. On x86-64 with
carry-less multiplication it folds 64 bytes at a time (Gopal et al., "Fast CRC Computation for
Generic Polynomials Using PCLMULQDQ", Intel 2009): 15 ns for 100 bytes. Elsewhere it slices by eight
(Kounavis and Berry, 2005), some six times slower. A test compares both with zlib.

A *register* is the CRC before its final inversion, so that a CRC can be continued.
"""

from __future__ import annotations

import zlib
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic

from timerstore.timelog.intrinsics import _pointer, get_u8, get_word
from timerstore.timelog.kernel import INTERPRETED, inlined

POLYNOMIAL = 0xEDB88320
START = 0xFFFFFFFF

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_PAIR, _BYTES_16, _QUADS = ir.VectorType(_I64, 2), ir.VectorType(_I8, 16), ir.VectorType(_I32, 4)

# x^n mod P for the distances folded over, bit-reflected (Intel's paper, table for CRC-32)
_FOLD_64 = (0x0154442BD4, 0x01C6E41596)
_FOLD_16 = (0x01751997D0, 0x00CCAA009E)
_FOLD_8 = 0x0163CD6124
_BARRETT = (0x01DB710641, 0x01F7011641)


def _tables() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return slicing-by-8 tables as int64[8 * 256]; the first 256 are the plain table."""
    table = np.zeros((8, 256), np.int64)
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = (register >> 1) ^ POLYNOMIAL if register & 1 else register >> 1
        table[0, byte] = register
    for step in range(1, 8):
        before = table[step - 1]
        table[step] = table[0][before & 0xFF] ^ (before >> 8)
    return table.reshape(-1)


_TABLE = _tables()


class _Folder:
    """Emits the folding function into an LLVM module, block by block."""

    NAME = "timerstore_crc32_fold"

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        kind = ir.FunctionType(_I32, [_I64, _I64, _I32])
        self.function = ir.Function(module, kind, self.NAME)
        self.function.linkage = "linkonce_odr"
        self.function.attributes.add("noinline")
        multiply = ir.FunctionType(_PAIR, [_PAIR, _PAIR, _I8])
        self._multiply = cgutils.get_or_insert_function(module, multiply, "llvm.x86.pclmulqdq")
        shuffle = ir.FunctionType(_BYTES_16, [_BYTES_16, _BYTES_16])
        self._shuffle = cgutils.get_or_insert_function(
            module, shuffle, "llvm.x86.ssse3.pshuf.b.128"
        )
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    def load(self, address: Any, offset: int = 0, kind: Any = _PAIR) -> Any:
        builder = self.builder
        where = builder.add(address, _I64(offset))
        return builder.load(builder.inttoptr(where, kind.as_pointer()), align=1)

    def pair(self, low: int, high: int) -> Any:
        return ir.Constant(_PAIR, [_I64(low), _I64(high)])

    def multiply(self, a: Any, b: Any, halves: int) -> Any:
        return self.builder.call(self._multiply, [a, b, _I8(halves)])

    def shuffle(self, value: Any, order: Any) -> Any:
        return self.builder.call(self._shuffle, [value, order])

    def fold(self, value: Any, distance: tuple[int, int], following: Any) -> Any:
        """Move `value` on by the distance and add what stands there."""
        by, builder = self.pair(*distance), self.builder
        moved = builder.xor(self.multiply(value, by, 0x00), self.multiply(value, by, 0x11))
        return builder.xor(moved, following)

    def emit(self) -> ir.Function:
        """Emit the function (address, count >= 16, register) -> register."""
        builder = self.builder
        address, count, register = self.function.args
        blocks = {
            name: self.function.append_basic_block(name)
            for name in (
                "short",
                "long",
                "by64",
                "fold64",
                "join",
                "by16",
                "fold16",
                "rest",
                "tail",
                "end",
            )
        }
        zero = ir.Constant(_PAIR, [_I64(0), _I64(0)])
        start = builder.insert_element(zero, builder.zext(register, _I64), _I32(0))
        builder.cbranch(
            builder.icmp_unsigned(">=", count, _I64(64)), blocks["long"], blocks["short"]
        )

        builder.position_at_end(blocks["short"])
        short_value = builder.xor(self.load(address), start)
        short_at, short_left = builder.add(address, _I64(16)), builder.sub(count, _I64(16))
        builder.branch(blocks["by16"])

        builder.position_at_end(blocks["long"])
        first = [self.load(address, 16 * lane) for lane in range(4)]
        first[0] = builder.xor(first[0], start)
        long_at, long_left = builder.add(address, _I64(64)), builder.sub(count, _I64(64))
        builder.branch(blocks["by64"])

        builder.position_at_end(blocks["by64"])  # four lanes of 16 bytes
        lanes = [builder.phi(_PAIR) for _ in range(4)]
        at_64, left_64 = builder.phi(_I64), builder.phi(_I64)
        more = builder.icmp_unsigned(">=", left_64, _I64(64))
        builder.cbranch(more, blocks["fold64"], blocks["join"])
        builder.position_at_end(blocks["fold64"])
        folded = [
            self.fold(lane, _FOLD_64, self.load(at_64, 16 * i)) for i, lane in enumerate(lanes)
        ]
        next_at, next_left = builder.add(at_64, _I64(64)), builder.sub(left_64, _I64(64))
        builder.branch(blocks["by64"])
        for phi, before, after in zip(
            [*lanes, at_64, left_64],
            [*first, long_at, long_left],
            [*folded, next_at, next_left],
            strict=True,
        ):
            phi.add_incoming(before, blocks["long"])
            phi.add_incoming(after, blocks["fold64"])

        builder.position_at_end(blocks["join"])
        joined = lanes[0]
        for lane in lanes[1:]:
            joined = self.fold(joined, _FOLD_16, lane)
        builder.branch(blocks["by16"])

        builder.position_at_end(blocks["by16"])  # one lane
        value, at, left = builder.phi(_PAIR), builder.phi(_I64), builder.phi(_I64)
        more = builder.icmp_unsigned(">=", left, _I64(16))
        builder.cbranch(more, blocks["fold16"], blocks["rest"])
        builder.position_at_end(blocks["fold16"])
        once = self.fold(value, _FOLD_16, self.load(at))
        once_at, once_left = builder.add(at, _I64(16)), builder.sub(left, _I64(16))
        builder.branch(blocks["by16"])
        for phi, short, long, again in (
            (value, short_value, joined, once),
            (at, short_at, at_64, once_at),
            (left, short_left, left_64, once_left),
        ):
            phi.add_incoming(short, blocks["short"])
            phi.add_incoming(long, blocks["join"])
            phi.add_incoming(again, blocks["fold16"])

        builder.position_at_end(blocks["rest"])
        none = builder.icmp_unsigned("==", left, _I64(0))
        builder.cbranch(none, blocks["end"], blocks["tail"])
        builder.position_at_end(blocks["tail"])
        tail = self.fold_tail(value, at, left)
        builder.branch(blocks["end"])

        builder.position_at_end(blocks["end"])
        result = builder.phi(_PAIR)
        result.add_incoming(value, blocks["rest"])
        result.add_incoming(tail, blocks["tail"])
        builder.ret(self.reduce(result))
        return self.function

    def fold_tail(self, value: Any, at: Any, left: Any) -> Any:
        """Take in the last 1 to 15 bytes, without reading past them.

        `value` and the tail are 16 + left bytes. They are cut again as left + 16: the first part
        is folded over the second, whose end are the last 16 bytes of the data themselves.
        """
        builder = self.builder
        name = "timerstore_crc32_orders"
        if name in self.module.globals:
            orders = self.module.globals[name]
        else:
            orders = ir.GlobalVariable(self.module, ir.ArrayType(_I8, 48), name)
            orders.global_constant, orders.linkage = True, "internal"
            content = [0xFF] * 16 + list(range(16)) + [0xFF] * 16
            orders.initializer = ir.Constant(ir.ArrayType(_I8, 48), bytearray(content))
        base = builder.add(builder.ptrtoint(orders, _I64), left)
        order_first, order_second = self.load(base, 0, _BYTES_16), self.load(base, 16, _BYTES_16)
        as_bytes = builder.bitcast(value, _BYTES_16)
        first = builder.bitcast(self.shuffle(as_bytes, order_first), _PAIR)
        second = self.shuffle(as_bytes, order_second)
        last = self.load(builder.add(at, left), -16, _BYTES_16)
        from_tail = builder.icmp_signed("<", order_second, ir.Constant(_BYTES_16, [_I8(0)] * 16))
        second = builder.select(from_tail, last, second)
        return self.fold(first, _FOLD_16, builder.bitcast(second, _PAIR))

    def reduce(self, value: Any) -> Any:
        """Reduce 128 bits to the 32 of the register."""
        builder = self.builder
        zero = ir.Constant(_PAIR, [_I64(0), _I64(0)])
        high = ir.Constant(ir.VectorType(_I32, 2), [_I32(1), _I32(2)])
        low_32 = self.pair(0xFFFFFFFF, 0)
        by_64 = builder.xor(
            self.multiply(value, self.pair(*_FOLD_16), 0x10),
            builder.shuffle_vector(value, zero, high),
        )
        quads = builder.bitcast(by_64, _QUADS)
        shift = ir.Constant(ir.VectorType(_I32, 4), [_I32(i) for i in (1, 2, 3, 4)])
        shifted = builder.shuffle_vector(quads, ir.Constant(_QUADS, [_I32(0)] * 4), shift)
        by_32 = builder.xor(
            self.multiply(builder.and_(by_64, low_32), self.pair(_FOLD_8, 0), 0x00),
            builder.bitcast(shifted, _PAIR),
        )
        barrett = self.pair(*_BARRETT)
        quotient = self.multiply(builder.and_(by_32, low_32), barrett, 0x10)
        product = self.multiply(builder.and_(quotient, low_32), barrett, 0x00)
        remainder = builder.bitcast(builder.xor(by_32, product), _QUADS)
        return builder.extract_element(remainder, _I32(1))


@intrinsic
def _fold(typingctx: Any, buf: Any, at: Any, count: Any, register: Any) -> Any:
    """Compute the register after `count` >= 16 bytes at `at`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = builder.module.globals.get(_Folder.NAME) or _Folder(builder.module).emit()
        last = builder.add(args[1], builder.sub(args[2], _I64(1)))
        _pointer(context, builder, sig, args, 0, last, 1)
        pointer = builder.ptrtoint(_pointer(context, builder, sig, args, 0, args[1], 1), _I64)
        result = builder.call(function, [pointer, args[2], builder.trunc(args[3], _I32)])
        return builder.zext(result, _I64)

    return types.int64(buf, types.int64, types.int64, types.int64), codegen


@inlined
def register_by_table(buf: Any, at: int, count: int, register: int) -> int:
    """Return the register after `count` bytes, slicing by eight; the portable way."""
    end = at + count
    while at + 8 <= end:
        word = get_word(buf, at)
        low = (word & 0xFFFFFFFF) ^ register
        high = (word >> 32) & 0xFFFFFFFF
        register = (
            _TABLE[1792 + (low & 255)]
            ^ _TABLE[1536 + ((low >> 8) & 255)]
            ^ _TABLE[1280 + ((low >> 16) & 255)]
            ^ _TABLE[1024 + (low >> 24)]
            ^ _TABLE[768 + (high & 255)]
            ^ _TABLE[512 + ((high >> 8) & 255)]
            ^ _TABLE[256 + ((high >> 16) & 255)]
            ^ _TABLE[high >> 24]
        )
        at += 8
    while at < end:
        register = _TABLE[(register ^ get_u8(buf, at)) & 255] ^ (register >> 8)
        at += 1
    return register


_CAN_FOLD = bool(llvm.get_host_cpu_features().get("pclmul")) and bool(
    llvm.get_host_cpu_features().get("ssse3")
)

if INTERPRETED:

    def crc_register(buf: Any, at: int, count: int, register: int) -> int:
        """Return the register after `count` bytes at `at`."""
        data = buf[at : at + count].tobytes()
        assert len(data) == count
        return zlib.crc32(data, int(register) ^ START) ^ START

elif _CAN_FOLD:

    @inlined
    def crc_register(buf: Any, at: int, count: int, register: int) -> int:
        """Return the register after `count` bytes at `at`."""
        if count >= 16:
            return _fold(buf, at, count, register)
        return register_by_table(buf, at, count, register)

else:
    crc_register = register_by_table


@inlined
def crc32(buf: Any, at: int, count: int) -> int:
    """Return zlib's CRC-32 of `count` bytes at `at`."""
    return crc_register(buf, at, count, START) ^ START
