"""CRC-32 by carry-less multiplication, or by ARM's own instruction, as LLVM code.

After Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009: a
register of the processor holds what the bytes up to here amount to; multiplying its halves by two
constants moves it on over so many bytes, and what stands there is added. Four registers side by
side in one, which AVX-512 has, would take 20 ns for 300 bytes instead of 24, 28 µs for a mebibyte
instead of 44, and as many lines again.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic
from numba.core.registry import cpu_target

from timerstore.jit.codegen import pointer_to
from timerstore.jit.crc import POLYNOMIAL, register_by_table

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_PAIR, _BYTES_16, _QUADS = ir.VectorType(_I64, 2), ir.VectorType(_I8, 16), ir.VectorType(_I32, 4)


def _power(bits: int) -> int:
    """Return x^bits modulo the polynomial, bit-reflected, as the multiplication wants it."""
    value = 0x80000000
    for _ in range(bits):
        value = (value >> 1) ^ POLYNOMIAL if value & 1 else value >> 1
    return value << 1


def _distance(count: int) -> tuple[int, int]:
    """Return what the low and the high half are multiplied by to move on over `count` bytes."""
    return _power(8 * count + 32), _power(8 * count - 32)


_FOLD_64, _FOLD_16 = _distance(64), _distance(16)
_FOLD_8: Final = _power(64)
_BARRETT: Final = (0x01DB710641, 0x01F7011641)
assert _FOLD_64 == (0x0154442BD4, 0x01C6E41596) and _FOLD_16 == (0x01751997D0, 0x00CCAA009E)
assert _FOLD_8 == 0x0163CD6124  # as the paper has them


class _Folding:
    """What the functions (address, count >= 16, register) -> register have in common."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        kind = ir.FunctionType(_I32, [_I64, _I64, _I32])
        self.function = ir.Function(module, kind, self.name())
        self.function.linkage = "linkonce_odr"
        self.function.attributes.add("noinline")
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    @classmethod
    def name(cls) -> str:
        """Return the function's name."""
        return f"timerstore_crc32_{cls.__name__.lower()}"

    def call(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """Call one of LLVM's own functions."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.module, kind, name)
        return self.builder.call(function, arguments)

    def load(self, address: Any, offset: int = 0, kind: Any = _PAIR) -> Any:
        """Load a register's worth of bytes."""
        builder = self.builder
        where = builder.add(address, _I64(offset))
        return builder.load(builder.inttoptr(where, kind.as_pointer()), align=1)

    def pair(self, low: int, high: int) -> Any:
        """Return the two halves of a constant."""
        return ir.Constant(_PAIR, [_I64(low), _I64(high)])

    def multiply(self, a: Any, b: Any, halves: int) -> Any:
        """Multiply one half of `a` with one of `b`."""
        return self.call("llvm.x86.pclmulqdq", a.type, [a, b, _I8(halves)])

    def fold(self, value: Any, distance: tuple[int, int], following: Any) -> Any:
        """Move `value` on by the distance and add what stands there."""
        by = self.pair(*distance)
        moved = self.builder.xor(self.multiply(value, by, 0x00), self.multiply(value, by, 0x11))
        return self.builder.xor(moved, following)

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


class CarryLess(_Folding):
    """Four registers for 64 bytes at a time, then one for 16."""

    def shuffle(self, value: Any, order: Any) -> Any:
        """Put bytes into another order."""
        return self.call("llvm.x86.ssse3.pshuf.b.128", _BYTES_16, [value, order])

    def emit(self) -> ir.Function:
        """Emit the function."""
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


class Direct(_Folding):
    """ARM's instruction for this very polynomial: 8 bytes at a time, then one by one."""

    def emit(self) -> ir.Function:
        """Emit the function."""
        builder = self.builder
        address, count, register = self.function.args
        before = builder.block
        for kind, name in ((_I64, "crc32x"), (_I8, "crc32b")):
            loop, step, end = map(self.function.append_basic_block, ("loop", "step", "end"))
            step_bytes = _I64(kind.width // 8)
            builder.branch(loop)

            builder.position_at_end(loop)
            at, left, value = builder.phi(_I64), builder.phi(_I64), builder.phi(_I32)
            builder.cbranch(builder.icmp_unsigned(">=", left, step_bytes), step, end)

            builder.position_at_end(step)
            data = self.load(at, 0, kind)
            data = data if kind == _I64 else builder.zext(data, _I32)
            taken = self.call(f"llvm.aarch64.{name}", _I32, [value, data])
            after = builder.add(at, step_bytes), builder.sub(left, step_bytes), taken
            builder.branch(loop)
            for phi, first, again in zip(
                (at, left, value), (address, count, register), after, strict=True
            ):
                phi.add_incoming(first, before)
                phi.add_incoming(again, step)

            builder.position_at_end(end)
            address, count, register, before = at, left, value, end
        builder.ret(register)
        return self.function


def folding_with(features: str) -> type[CarryLess] | type[Direct] | None:
    """Return what a processor of these features can do; None: it slices.

    `features`: as LLVM has them, "+avx2,-avx512f,…".
    """
    has = {name[1:] for name in features.split(",") if name[:1] == "+"}
    if "crc" in has:  # LLVM's name on ARM alone
        return Direct
    return CarryLess if has >= {"pclmul", "ssse3"} else None


FOLDING: Final = folding_with(cpu_target.target_context.codegen().magic_tuple()[2])
"""What the processor that kernels are compiled for can do."""


def new_fold(folding: Any) -> Any:
    """Return the intrinsic (buf, at, count >= 16, register) -> register that folds in this way."""

    @intrinsic
    def fold(typingctx: Any, buf: Any, at: Any, count: Any, register: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            known = builder.module.globals.get(folding.name())
            function = known or folding(builder.module).emit()
            last = builder.add(args[1], builder.sub(args[2], _I64(1)))
            pointer_to(context, builder, sig, args, 0, last, 1)
            pointer = builder.ptrtoint(pointer_to(context, builder, sig, args, 0, args[1], 1), _I64)
            result = builder.call(function, [pointer, args[2], builder.trunc(args[3], _I32)])
            return builder.zext(result, _I64)

        return types.int64(buf, types.int64, types.int64, types.int64), codegen

    return fold


fold = register_by_table if FOLDING is None else new_fold(FOLDING)
"""What kernels call for 16 bytes and more."""
